"""Devices as tables. More, against a CUDA build of torch: tests/kit/predict/test_cuda_rules.py."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cs336kit.predict import (
    DEVICES,
    TransformerConfig,
    peak_moments,
    program,
    saved_activation_bytes,
    saved_block_bytes,
    step_peak,
    step_timeline,
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
    buckets = [training_memory(config, **SIZE, **policy, device=device)["activations"] for device in ("cpu", "cuda")]
    assert buckets == [cpu, cuda]


def test_a_device_changes_what_is_alive_and_the_products_of_a_fused_backward_pass():
    config = replace(TINY, dropout=0.1)
    cpu, cuda = (step_peak(config, **SIZE, device=device)["temporary tensors"] for device in ("cpu", "cuda"))
    assert 0 < cuda <= cpu
    products = {d: training_flops(config, **SIZE, attention="sdpa", device=d).total for d in ("cpu", "cuda")}
    # Five products of attention instead of four: its scores once more in each layer.
    assert products["cuda"] - products["cpu"] == TINY.layers * 2 * 4 * 128**2 * 64


def test_what_autocast_runs_in_fp32_reads_copies_in_fp32():
    config = replace(TINY, mlp="relu2", qk_norm="head", attention_softcap=None)
    read = {}
    for device in ("cpu", "cuda"):
        ops = [op for op, _ in program(config, **SIZE, precision="autocast", device=device).operations()]
        for op in ops:
            if op.place in ("block/mlp/square", "block/attention/query norm", "block/attention/key norm"):
                read[device, op.kind] = op.inputs[0].dtype, op.outputs[0].dtype
        # What the scores are made of is in half precision all the same.
        scores = next(op for op in ops if op.place == "block/attention/eager/scores")
        assert {tensor.dtype for tensor in scores.inputs} == {"bf16"}
    assert read["cuda", "square"] == read["cuda", "layer_norm"] == ("fp32", "fp32")
    assert read["cpu", "square"] == read["cpu", "layer_norm"] == ("bf16", "bf16")


def test_three_masks_of_an_odd_number_of_bytes_are_not_rounded_up():
    # Dropout of one head's weight and of two rows of 33 numbers keeps 1 + 33 + 33 bytes, beside numbers of two or more.
    config = TransformerConfig(layers=1, d_model=33, heads=1, vocab=10, context=4, dropout=0.1)
    moments = peak_moments(config, batch=1, sequence=1, attention="eager", device="cuda")
    assert moments["loss"] % 2 == 1
    timeline = step_timeline(config, batch=1, sequence=1, attention="eager", device="cuda")
    assert [moment.live_bytes % 2 for moment in timeline if moment.stage == "block 1 forward"] == [1]


def test_an_unknown_device_is_refused_by_name():
    with pytest.raises(ValueError, match="'gpu'.*cpu.*cuda"):
        saved_activation_bytes(TINY, **SIZE, device="gpu")


def rows(batch, heads, sequence, width, dtype):
    """Queries or keys: what a kernel asks of them."""
    elements = batch * heads * sequence * width
    size = elements * {"fp32": 4, "bf16": 2}[dtype]
    return SimpleNamespace(shape=(batch, heads, sequence, width), dtype=dtype, bytes=size)


@pytest.mark.parametrize(("dtype", "workspace"), [("fp32", (1920, 120, 120)), ("bf16", (1920, 120))])
def test_what_the_backward_pass_of_attention_with_a_mask_needs_for_a_moment(dtype, workspace):
    # 2 · 3 · 5 rows of 16 numbers, four bytes each: 120 bytes with a number of each row, 1,920 with all.
    queries = rows(2, 3, 5, 16, dtype)
    kernel = DEVICES["cuda"].kernel(dtype, width=16, dropout=False, mask=True, grouped=False)
    assert kernel.backward(queries, queries) == workspace


@pytest.mark.parametrize(
    ("sequence", "width", "kv_heads", "workspace"),
    [
        # One fp32 number for each row, rows rounded up to 128; then a row of numbers, rounded up to 32 or to 256.
        (5, 24, 4, (4 * 2 * 4 * 128, 4 * 2 * 4 * 128 * 32)),
        (128, 192, 4, (4 * 2 * 4 * 128, 4 * 2 * 4 * 128 * 192)),
        (129, 200, 4, (4 * 2 * 4 * 256, 4 * 2 * 4 * 256 * 256)),
        # Keys and values of every query head, two bytes each.
        (5, 24, 2, (4 * 2 * 4 * 128, 4 * 2 * 4 * 128 * 32, 2 * 2 * 4 * 5 * 24, 2 * 2 * 4 * 5 * 24)),
    ],
)
def test_what_the_backward_pass_of_flash_attention_needs_for_a_moment(sequence, width, kv_heads, workspace):
    kernel = DEVICES["cuda"].kernel("bf16", width=width, dropout=True, mask=False, grouped=kv_heads < 4)
    queries, keys = (rows(2, heads, sequence, width, "bf16") for heads in (4, kv_heads))
    assert kernel.name == "flash" and kernel.backward(queries, keys) == workspace


@pytest.mark.parametrize(
    ("tokens", "table", "width", "parts", "wide"),
    [(3073, 100, 5, 307 + 100, 32), (3080, 5000, 64, 308 + 3080, 64), (4000, 10, 33, 400 + 10, 64)],
)
def test_many_tokens_are_sorted_in_the_backward_pass_of_a_look_up(tokens, table, width, parts, wide):
    look_up = DEVICES["cuda"].embedding
    assert look_up(3072, table, width) == ()
    # Sorted tokens and their places, the place of each part, and its sum in fp32 in rows of whole warps.
    assert look_up(tokens, table, width) == (8 * tokens, 8 * tokens, 8 * parts, 4 * parts * wide)


@pytest.mark.parametrize(
    ("device", "dtype", "width", "asked", "taken"),
    [
        ("cpu", "fp32", 3, {"mask": True, "grouped": True}, "flash for CPU"),
        ("cpu", "bf16", 64, {}, "flash for CPU"),
        ("cpu", "fp16", 64, {}, "flash for CPU"),
        ("cpu", "fp64", 64, {}, None),
        ("cpu", "fp32", 64, {"dropout": True}, None),
        ("cpu", "fp32", 64, {"value_width": 32}, None),
        ("cpu", "fp32", 64, {"value_width": 64}, "flash for CPU"),
        ("cuda", "bf16", 12, {"dropout": True, "grouped": True}, "flash"),
        ("cuda", "fp16", 256, {}, "flash"),
        ("cuda", "fp16", 264, {}, "memory-efficient"),
        ("cuda", "bf16", 260, {}, None),
        ("cuda", "bf16", 264, {"grouped": True}, None),
        ("cuda", "bf16", 64, {"mask": True}, "memory-efficient"),
        ("cuda", "bf16", 64, {"mask": True, "grouped": True}, None),
        ("cuda", "bf16", 64, {"value_width": 32, "dropout": True}, "memory-efficient"),
        ("cuda", "bf16", 12, {"mask": True}, None),
        ("cuda", "fp16", 12, {"mask": True}, None),
        ("cuda", "fp32", 12, {}, "memory-efficient"),
        ("cuda", "fp32", 8, {"mask": True, "dropout": True}, "memory-efficient"),
        ("cuda", "fp32", 10, {}, None),
        ("cuda", "fp32", 64, {"grouped": True}, None),
    ],
)
def test_which_fused_kernel_takes_which_heads(device, dtype, width, asked, taken):
    asked = {"dropout": False, "mask": False, "grouped": False, **asked}
    kernel = DEVICES[device].kernel(dtype, width=width, **asked)
    assert (kernel and kernel.name) == taken


@pytest.mark.parametrize(
    ("precision", "change", "kept"),
    [
        # The rows of flash attention are counted as they are, and its random numbers have a state of 24 bytes.
        ("bf16", {}, {"logsumexp": 4 * 2 * 4 * 5, "random state": 16 + 8}),
        # Those of the other kernel in 32, its mask in columns of 8, its two random numbers as int64.
        ("fp32", {}, {"logsumexp": 4 * 2 * 4 * 32, "indices on the host": 16}),
        ("bf16", {"window": 3}, {"window mask": 2 * 5 * 8, "logsumexp": 4 * 2 * 4 * 32, "indices on the host": 16}),
        ("fp32", {"window": 3}, {"window mask": 4 * 5 * 8, "logsumexp": 4 * 2 * 4 * 32, "indices on the host": 16}),
        # Heads of 12 numbers become 16 wide for flash attention.
        ("bf16", {"head_dim": 12}, {"logsumexp": 4 * 2 * 4 * 5, "random state": 16 + 8}),
    ],
)
def test_what_fused_attention_keeps_on_cuda(precision, change, kept):
    config = replace(TINY, **change)
    options = {"batch": 2, "sequence": 5, "precision": precision, "attention": "sdpa", "device": "cuda"}
    (op,) = [op for op, _ in program(config, **options).operations() if op.kind == "sdpa"]
    # Beside queries, keys, values and the output.
    assert {storage.bytes for storage in (*op.saves[:3], op.saves[-1])} == {
        (4 if precision == "fp32" else 2) * 2 * 5 * 64
    }
    found = Counter()
    for storage in op.saves[3:-1]:
        found[storage.name] += storage.bytes
    assert found == kept


@pytest.mark.parametrize(
    ("window", "precision", "workspace"),
    [
        # In a ring flash attention needs keys and values of two ranks and their gradients beside its own: 2 · 4 heads of 2
        # positions and 16 numbers, two bytes each. A window gathers keys, and then the kernel needs what it always needs.
        (None, "bf16", (4 * 2 * 4 * 128, 4 * 2 * 4 * 128 * 32, *[2 * 2 * 4 * 2 * 16] * 6)),
        (3, "bf16", (4 * 2 * 4 * 2 * 16, 4 * 2 * 4 * 2)), (3, "fp32", (4 * 2 * 4 * 2 * 16, 4 * 2 * 4 * 2, 4 * 2 * 4 * 2)),
    ],
)  # fmt: skip
def test_what_attention_of_a_rank_of_cp_needs_for_a_moment_backward(window, precision, workspace):
    options = {"batch": 2, "sequence": 8, "precision": precision, "attention": "sdpa", "device": "cuda"}
    listed = program(replace(TINY, window=window), **options, layout="cp=4")
    (op,) = [op for op, _ in listed.operations() if op.kind == "sdpa"]
    assert op.workspace == workspace


def test_heads_that_a_kernel_pads_are_cut_to_their_width_again():
    config = replace(TINY, head_dim=12)
    options = {"batch": 2, "sequence": 5, "precision": "bf16", "attention": "sdpa", "device": "cuda"}
    made = {op.kind: op.outputs[0].shape for op, _ in program(config, **options).operations()}
    assert made["sdpa"] == (2, 4, 5, 16) and made["slice"] == (2, 4, 5, 12)


def test_a_mask_of_every_head_is_padded_with_all_of_them():
    config = TransformerConfig(layers=1, d_model=32, heads=4, vocab=11, context=64, positions="alibi")
    options = {"batch": 1, "precision": "bf16", "attention": "sdpa", "device": "cuda"}
    for sequence, columns in ((7, 8), (8, 8), (9, 16)):
        kept = saved_block_bytes(config, sequence=sequence, **options)
        assert kept["mask"] == 2 * 4 * sequence * columns
