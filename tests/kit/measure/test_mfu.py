import sys

import pytest
import torch

from cs336kit import measure, predict
from cs336kit.measure.seconds import Timing

pytestmark = pytest.mark.torch


def test_the_lectures_two_numbers():
    work = predict.matmul_flops(16384, 32768, 8192)
    fp32 = measure.mfu(work, 0.163, dtype=torch.float32, peak_flops_per_second=67.5e12)
    assert round(float(fp32), 2) == 0.80 and fp32.flops_per_second == work / 0.163
    bf16 = measure.mfu(work, 0.03216, dtype=torch.bfloat16, accelerator_name="h100-sxm")
    assert round(bf16.dense, 3) == 0.276 and round(bf16.sparse, 3) == 0.138 and bf16.best_measured is None


def test_against_all_three_peaks():
    u = measure.mfu(
        1e15, Timing((2.0, 2.0), 1, "cuda", True), dtype="bf16", accelerator_name="NVIDIA H200", best_measured=8e14
    )
    assert u.flops_per_second == 5e14 and u.best_measured == 0.625 and u.dense == pytest.approx(500 / 989.4)
    assert u.sparse is None
    assert repr(u) == (
        "500 TFLOP/s in bf16: 0.505 of the dense peak 989.4, 0.625 of the best measured peak 800 TFLOP/s"
    )


def test_fp32_is_tf32_where_torch_may_use_it():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        u = measure.mfu(1e14, 1.0, dtype=torch.float32, accelerator_name="h100-sxm")
        assert u.precision == "tf32" and u.peaks["dense"] == 494.7e12
        assert measure.mfu(1e14, 1.0, dtype=torch.bfloat16, accelerator_name="h100-sxm").precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
    assert measure.mfu(1e14, 1.0, dtype=torch.float32, accelerator_name="h100-sxm").peaks["dense"] == 66.9e12


def test_fp32_products_in_tf32_by_torchs_newer_setting():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert measure.mfu(6e13, 1.0, dtype=torch.float32, accelerator_name="a100-sxm-80gb").precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_an_unknown_device_says_how_to_pass_the_peak(monkeypatch):
    with pytest.raises(LookupError, match="no peak is known for 'abacus': pass peak_flops_per_second="):
        measure.mfu(1.0, 1.0, dtype="fp32", accelerator_name="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(LookupError, match="no peak is known for 'cpu': pass peak_flops_per_second="):
            measure.mfu(1.0, 1.0, dtype=torch.float32)


def test_a_missing_cell_is_not_replaced():
    with pytest.raises(
        LookupError, match="V100 SXM2 32 GB has no sourced bf16 tensor dense peak.*pass peak_flops_per_second"
    ):
        measure.mfu(1.0, 1.0, dtype=torch.bfloat16, accelerator_name="v100-sxm2-32gb")


def test_bad_input():
    for bad in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be"):
            measure.mfu(1.0, bad, dtype="fp32", peak_flops_per_second=1.0)
    with pytest.raises(ValueError, match="has no peak of its own"):
        measure.mfu(1.0, 1.0, dtype=torch.bool, peak_flops_per_second=1.0)
    for bad in ("much", True, None):
        with pytest.raises(ValueError, match="flops must be"):
            measure.mfu(bad, 1.0, dtype="fp32", peak_flops_per_second=1.0)
    with pytest.raises(ValueError, match="flops must be a number, got a Breakdown: write measure.flops"):
        measure.mfu(measure.flops(lambda: None), 1.0, dtype="fp32", peak_flops_per_second=1.0)
    with pytest.raises(ValueError, match="'fp33' is not a precision"):
        measure.mfu(1.0, 1.0, dtype="fp33", peak_flops_per_second=1.0)
    with pytest.raises(ValueError, match="not a precision"):
        measure.mfu(1.0, 1.0, dtype="bfloat", accelerator_name="h100-sxm")


def test_the_accelerator_of_this_machine(monkeypatch):
    module = sys.modules["cs336kit.measure.mfu"]
    for name, entry in (("cpu", None), ("NVIDIA H200", "h200-sxm"), ("NVIDIA Unheard Of", None)):
        monkeypatch.setattr(module, "device_name", lambda where, name=name: name)
        found = measure.this_accelerator()
        assert (found and found.name) == entry


def test_more_than_the_peak_is_pointed_out():
    assert "above every peak" in repr(measure.mfu(2e12, 1.0, dtype="fp32", peak_flops_per_second=1e12))
    assert "above every peak" not in repr(measure.mfu(1e12, 1.0, dtype="fp32", peak_flops_per_second=1e12))
    # More than one of two peaks is possible: a sweep seldom reaches the datasheet.
    between = measure.mfu(1e12, 1.0, dtype="fp32", peak_flops_per_second=2e12, best_measured=0.5e12)
    assert "above every peak" not in repr(between)
