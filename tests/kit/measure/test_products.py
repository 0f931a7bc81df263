import pytest
import torch

from cs336kit.measure.products import LECTURE_PRODUCT, best_matmul, precisions, product
from cs336kit.predict import matmul_flops

pytestmark = pytest.mark.torch

QUICK = {"device": "cpu", "warmup": 1, "at_least": 2, "at_most": 2}


def test_one_product():
    one = product(32, 16, 8, precision="fp32", **QUICK)
    assert one.flops == 2 * 32 * 16 * 8 and one.flops_per_second == one.flops / one.timing.median
    assert one.cost.bytes == 4 * (32 * 16 + 16 * 8 + 32 * 8)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_numbers_of_two_bytes_need_no_gpu(precision):
    assert product(32, 16, 8, precision=precision, **QUICK).cost.bytes == 2 * (32 * 16 + 16 * 8 + 32 * 8)


def test_fp8_runs_and_counts_its_bytes():
    one = product(32, 16, 16, precision="fp8", **QUICK)
    assert one.cost.bytes == 32 * 16 + 16 * 16 + 2 * 32 * 16


def test_a_sweep_and_its_best():
    sweep = [product(n, n, n, precision=p, **QUICK) for p in ("fp32", "bf16") for n in (8, 16, 32)]
    assert best_matmul(sweep, precision="bf16") == max(one.flops_per_second for one in sweep[3:])
    with pytest.raises(ValueError, match="no product was measured in 'fp16'; measured: fp32, bf16"):
        best_matmul(sweep, precision="fp16")


def test_the_lectures_product_is_two_to_the_43():
    assert matmul_flops(*LECTURE_PRODUCT) == 2**43


def test_the_precision_setting_is_put_back():
    before = torch.get_float32_matmul_precision()
    product(8, 8, 8, precision="fp32", **QUICK)
    assert torch.get_float32_matmul_precision() == before


@pytest.fixture
def fp32_settings():
    # What torch.set_float32_matmul_precision leaves would hide what torch.backends.fp32_precision says.
    places = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    for place in places:
        place.fp32_precision = "none"
    yield places
    torch.set_float32_matmul_precision("highest")
    for place in places:
        place.fp32_precision = "none"


def test_torchs_newer_precision_settings_are_put_back(fp32_settings):
    everywhere, cuda, cpu = fp32_settings
    product(8, 8, 8, precision="fp32", **QUICK)
    everywhere.fp32_precision = "tf32"
    assert (cuda.fp32_precision, cpu.fp32_precision) == ("tf32", "tf32"), "they follow it still"
    product(8, 8, 8, precision="fp32", **QUICK)
    everywhere.fp32_precision = "none"
    cuda.fp32_precision = cpu.fp32_precision = "tf32"
    seen = []
    seconds = lambda function, **options: seen.append(cpu.fp32_precision)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cs336kit.measure.products.seconds", seconds)
        product(8, 8, 8, precision="bf16", **QUICK)
    assert seen == ["ieee"] and (cuda.fp32_precision, cpu.fp32_precision) == ("tf32", "tf32")


def test_bad_input():
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        product(8, 8, 8, precision="tf32", **QUICK)
    with pytest.raises(ValueError, match="unknown precision 'fp9'"):
        product(8, 8, 8, precision="fp9", **QUICK)
    with pytest.raises(ValueError, match="rows must be"):
        product(0, 8, 8, **QUICK)


def test_precisions_by_device(monkeypatch):
    assert precisions("cpu") == ("fp32", "bf16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    # P100, V100, T4, A100, RTX 3090, RTX 4090, H100, B200
    for age, units in {
        (6, 0): "fp32", (7, 0): "fp32 fp16", (7, 5): "fp32 fp16", (8, 0): "fp32 tf32 bf16 fp16", (8, 6): "fp32 tf32 bf16 fp16",
        (8, 9): "fp32 tf32 bf16 fp16 fp8", (9, 0): "fp32 tf32 bf16 fp16 fp8", (10, 0): "fp32 tf32 bf16 fp16 fp8",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where, age=age: age)
        assert precisions("cuda") == tuple(units.split())
