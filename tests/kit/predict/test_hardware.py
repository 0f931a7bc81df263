import subprocess
import sys

import pytest

import cs336plan
from cs336kit import predict
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.hardware import PRECISIONS, accelerator, accelerators

NAMES = [
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-80gb",
    "a800-sxm-80gb",
    "a10",
    "rtx-a6000",
    "rtx-3090",
    "l4",
    "l40s",
    "rtx-4090",
    "h100-pcie",
    "h100-sxm",
    "h100-nvl",
    "h800-sxm",
    "h20-96gb",
    "h200-sxm",
    "b200-sxm",
    "gb200",
    "b300-sxm",
    "gb300",
    "rtx-5090",
    "rtx-pro-6000-workstation",
    "mi300x",
    "mi325x",
    "mi355x",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
]
DRIVER_NAMES = {
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A800-SXM4-80GB": "a800-sxm-80gb",
    "NVIDIA A10": "a10",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H800": "h800-sxm",
    "NVIDIA H20": "h20-96gb",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA B200": "b200-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA B300 SXM6 AC": "b300-sxm",
    "NVIDIA GB300": "gb300",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-workstation",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
}


def test_the_table_holds_these_devices():
    assert [a.name for a in accelerators()] == NAMES


@pytest.mark.parametrize("device", accelerators(), ids=lambda a: a.name)
def test_every_cell_has_unit_basis_source_and_date(device):
    cells = {**device.facts, **{" ".join(key): cell for key, cell in device.peaks.items()}}
    assert {"bandwidth", "memory_label_bytes"} <= cells.keys()
    for name, cell in cells.items():
        assert cell.value > 0 and cell.basis and cell.sources and cell.date.year >= 2024, name
        assert all(source.url.startswith("https://") and source.title for source in cell.sources), name
        assert cell.unit in {"bytes", "byte/s", "W", "FLOP/s", "OP/s", "accelerators"}, name
    for precision, engine, sparsity in device.peaks:
        cell = device.peaks[precision, engine, sparsity]
        assert precision in PRECISIONS and cell.basis.startswith(f"{sparsity}, {engine}")
        assert cell.unit == ("OP/s" if precision == "int8" else "FLOP/s")


def test_sparse_is_twice_dense_where_both_stand():
    pairs = 0
    for device in accelerators():
        for (precision, engine, sparsity), cell in device.peaks.items():
            if sparsity == "sparse":
                # Printed figures carry four digits: 989.4 and 1978.9.
                assert cell.value == pytest.approx(2 * device.peak(precision, engine=engine), rel=1e-3)
                pairs += 1
    assert pairs > 20


@pytest.mark.parametrize(("driver", "name"), DRIVER_NAMES.items())
def test_driver_names_resolve(driver, name):
    assert accelerator(driver).name == name


def test_rules_are_cudas_where_the_driver_is_nvidias():
    by_driver = {name for driver, name in DRIVER_NAMES.items() if driver.startswith(("NVIDIA", "Tesla"))}
    assert {device.name for device in accelerators() if device.rules == "cuda"} == by_driver
    assert {device.rules for device in accelerators()} <= {*DEVICES}


@pytest.mark.parametrize("device", accelerators(), ids=lambda a: a.name)
def test_names_resolve_exactly_and_their_beginnings_do_not(device):
    spoken = (device.name, device.title, *device.aliases)
    assert all(accelerator(name) == device for name in spoken)
    known = {name.lower().replace(" ", "-") for a in accelerators() for name in (a.name, a.title, *a.aliases)}
    for name in spoken:
        for near in (name[:-1], name + "0"):
            if near.strip().lower().replace(" ", "-") not in known:
                with pytest.raises(ValueError):
                    accelerator(near)


def test_no_name_resolves_to_two_devices():
    spoken = [{n.lower().replace(" ", "-") for n in (a.name, a.title, *a.aliases)} for a in accelerators()]
    assert sum(map(len, spoken)) == len(set.union(*spoken))


def test_the_numbers_that_the_course_uses():
    h100 = accelerator("H100 SXM")
    assert h100.peak("bf16") == 989.4e12 and h100.peak("bf16", sparse=True) == 1978.9e12
    assert h100.peak("bf16", engine="vector") == 133.8e12
    assert (
        h100.peak("fp32") == 66.9e12 and h100.peak("fp64") == 66.9e12 and h100.peak("fp64", engine="vector") == 33.5e12
    )
    assert (h100.memory_label_bytes, h100.memory_bytes) == (80_000_000_000, 81_559 * 2**20)
    assert (h100.bandwidth, h100.link, h100.host_link) == (3.35e12, 450e9, 64e9)
    assert accelerator("b200-sxm").peak("bf16") == 2250e12 and accelerator("gb200").peak("bf16") == 2500e12
    assert "1000 W" in accelerator("b200-sxm").cell("bf16").basis
    assert accelerator("a100_sxm_80gb").power == 400


@pytest.mark.parametrize(
    ("name", "of", "both_ways"), [("h800-sxm", "h100-sxm", 400e9), ("a800-sxm-80gb", "a100-sxm-80gb", 400e9)]
)
def test_a_chip_with_slower_links_is_otherwise_the_chip_that_it_was_made_from(name, of, both_ways):
    """400 GB/s both ways are 8 links of NVLink 3 and 4 (50 GB/s both ways each) in place of 12 and 18."""
    cut, whole = accelerator(name), accelerator(of)
    assert cut.link == both_ways / 2 == 8 * 25e9 < whole.link
    assert cut.bandwidth == whole.bandwidth and cut.memory_label_bytes == whole.memory_label_bytes
    for precision in {*cut.precisions} & {*whole.precisions}:
        assert cut.peak(precision) == pytest.approx(whole.peak(precision), rel=1e-3), precision


@pytest.mark.parametrize(
    ("name", "tensor_cores", "per_clock", "boost"),
    [
        # FLOPs a clock of one core, with sums in fp32: GeForce cards do half as many. Cores and clocks: pages beside the peaks.
        ("a10", 288, 256, 1.695e9),
        ("rtx-a6000", 336, 256, 1.8e9),
        ("rtx-3090", 328, 128, 1.695e9),
        ("rtx-5090", 680, 128, 2.407e9),
        ("rtx-pro-6000-workstation", 752, 256, 2.617e9),
        ("mi355x", 1024, 1024, 2.4e9),
    ],
)
def test_peaks_in_bf16_are_tensor_cores_times_clock(name, tensor_cores, per_clock, boost):
    assert accelerator(name).peak("bf16") == pytest.approx(tensor_cores * per_clock * boost, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("H100", "is sold as h100-pcie, h100-sxm and h100-nvl, with different numbers: name one of them"),
        ("a100", "name one of them"),
        ("tpu", "name one of them"),
        ("V100", "'V100' is sold in more forms than v100-sxm2-32gb, the one known here: name that if it is meant"),
    ],
)
def test_a_family_name_is_not_resolved(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        accelerator(name)


@pytest.mark.parametrize("name", ["", "h100-sxn", "NVIDIA H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cpu", None, 7])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(ValueError, match=r"unknown accelerator .*Known: .*h100-sxm"):
        accelerator(name)


def test_absent_cells_raise_and_never_fall_back():
    with pytest.raises(
        LookupError, match="has no sourced fp8 tensor dense peak; it has fp64, fp32, tf32, fp16, bf16, int8"
    ):
        accelerator("a100-sxm-80gb").peak("fp8")
    with pytest.raises(LookupError, match="bf16 tensor dense"):
        accelerator("v100-sxm2-32gb").peak("bf16")
    with pytest.raises(LookupError, match="no sourced fp64 tensor dense peak; it has fp64 vector dense"):
        accelerator("l40s").peak("fp64")
    for precision in ("fp64", "fp32", "tf32", "fp8", "int8"):
        with pytest.raises(LookupError):
            accelerator("h100-nvl").peak(precision)
    with pytest.raises(LookupError, match="no sourced link"):
        _ = accelerator("l40s").link
    with pytest.raises(LookupError, match="no sourced memory_bytes"):
        _ = accelerator("gb200").memory_bytes


def test_wrong_questions_are_sentences():
    h100 = accelerator("h100-sxm")
    with pytest.raises(ValueError, match=r"unknown precision or fact of an accelerator .bfloat16.\. Did you mean"):
        h100.cell("bfloat16")
    with pytest.raises(ValueError, match="unknown precision .bandwidth."):
        h100.peak("bandwidth")
    with pytest.raises(ValueError, match="unknown engine .cuda.* Known: tensor, vector"):
        h100.peak("bf16", engine="cuda")


def test_importing_predict_reads_no_table():
    # Less what was there before: an instrument of tests reads its settings.
    code = "import sys; before = {*sys.modules}; import cs336kit.predict; "
    code += "sys.exit(bool({'tomllib', 'torch'} & ({*sys.modules} - before)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_name_of_the_maker_may_be_left_out():
    assert accelerator("h200") is accelerator("NVIDIA H200") and accelerator("h200").name == "h200-sxm"
    assert accelerator("B200").name == "b200-sxm" and accelerator("H100 80GB HBM3").name == "h100-sxm"


@pytest.mark.parametrize(("name", "both_ways"), [("tpu-v5e", 400e9), ("tpu-v5p", 1200e9), ("tpu-v6e", 800e9)])
def test_the_links_of_a_tpu_are_half_of_what_google_prints_for_both_ways(name, both_ways):
    """Bidirectional inter-chip interconnect (ICI) bandwidth per chip. Source: docs.cloud.google.com/tpu/docs/v5e, v5p, v6e."""
    assert accelerator(name).link == both_ways / 2


def test_whoever_takes_an_accelerator_takes_its_name_or_the_accelerator_itself():
    model, name = predict.model("gpt2"), "a100-sxm-80gb"
    cost = predict.matmul_cost(512, 512, 512)
    question = {"count": 2, "batch": 1, "sequence": 64, "tokens": 1e6}
    for answer in (
        lambda chip: predict.roofline(cost, accelerator=chip),
        lambda chip: cs336plan.plan(cs336plan.Question(model, accelerator=chip, **question)).as_dict(),
        lambda chip: cs336plan.serve(cs336plan.ServingQuestion(model, accelerator=chip)).as_dict(),
        lambda chip: predict.decode_bounds(model, accelerator=chip, cached=64),
        lambda chip: predict.critical_batch(model, accelerator=chip),
        lambda chip: predict.step_seconds(model, accelerator=chip, layout="dp=2", batch=1, sequence=64),
        lambda chip: predict.find_layouts(model, accelerator=chip, count=2, sequence=64, limit=1),
    ):
        assert answer(accelerator(name)) == answer(name)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("rtx-3090", 24_576), ("rtx-4090", 24_564), ("rtx-5090", 32_607), ("h100-nvl", 95_830), ("a100-pcie-80gb", 81_920),
        ("a100-sxm-80gb", 81_920), ("a800-sxm-80gb", 81_920), ("a10", 23_028), ("rtx-a6000", 46_068),
    ],
)  # fmt: skip
def test_memory_is_what_the_driver_reports_where_somebody_has_printed_it(name, mib):
    device = accelerator(name)
    assert device.memory_bytes == mib * 2**20 and f"nvidia-smi's {mib:,} MiB" in device.cell("memory_bytes").basis
    # A chip is sold with the GiB that it has, called GB, of which the driver and the correction of errors take some.
    assert 1 < device.memory_bytes / device.memory_label_bytes < 1.074
