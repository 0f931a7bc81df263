"""Devices as tables. More, against a CUDA build of torch: tests/torch/predict/test_cuda_rules.py."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cs336kit.predict import (
    DEVICES,
    TransformerConfig,
    saved_activation_bytes,
    step_peak,
    training_flops,
    training_memory,
)

TINY = TransformerConfig(layers=2, d_model=64, heads=4, vocab=256, context=128)
SIZE = {"batch": 4, "sequence": 128}


@pytest.mark.parametrize(
    ("precision", "attention", "dropout", "cpu", "cuda"),
    [
        ("autocast", "eager", 0.0, 4_640_772, 6_737_924),
        ("bf16", "eager", 0.0, 3_811_332, 3_821_572),
        ("bf16", "sdpa", 0.1, 9_709_572, 2_920_500),
        ("fp32", "sdpa", 0.1, 11_816_964, 5_148_676),
    ],
)
def test_what_torch_kept_on_both_devices(precision, attention, dropout, cpu, cuda):
    # Counted by the hooks of saved tensors: on a CPU, and with a CUDA build on fake tensors.
    config, policy = replace(TINY, dropout=dropout), {"precision": precision, "attention": attention}
    assert saved_activation_bytes(config, **SIZE, **policy).total == cpu
    assert saved_activation_bytes(config, **SIZE, **policy, device="cuda").total == cuda


def test_a_device_changes_what_is_alive_and_the_products_of_a_fused_backward_pass():
    config = replace(TINY, dropout=0.1)
    cpu, cuda = (step_peak(config, **SIZE, device=device)["temporary tensors"] for device in ("cpu", "cuda"))
    assert 0 < cuda <= cpu
    products = {d: training_flops(config, **SIZE, attention="sdpa", device=d).total for d in ("cpu", "cuda")}
    # Five products of attention instead of four: its scores once more in each layer.
    assert products["cuda"] - products["cpu"] == TINY.layers * 2 * 4 * 128**2 * 64
    assert training_memory(config, **SIZE)["parameters"] == training_memory(config, **SIZE, device="cuda")["parameters"]


def test_an_unknown_device_is_refused_by_name():
    with pytest.raises(ValueError, match="'gpu'.*cpu.*cuda"):
        saved_activation_bytes(TINY, **SIZE, device="gpu")


@pytest.mark.parametrize(("dtype", "scratch"), [("fp32", (1920, 120, 120)), ("bf16", (1920, 120))])
def test_what_the_backward_pass_of_attention_with_a_mask_needs_for_a_moment(dtype, scratch):
    # 2 · 3 · 5 rows of 16 numbers, four bytes each: 120 bytes with a number of each row, 1,920 with all.
    rows = SimpleNamespace(shape=(2, 3, 5, 16), dtype=dtype)
    kernel = DEVICES["cuda"].kernel(dtype, width=16, dropout=False, mask=True, grouped=False)
    assert kernel.backward(rows, rows) == scratch
