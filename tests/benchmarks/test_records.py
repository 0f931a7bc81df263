"""What GPUs have measured (cs336kit/records), beside what is predicted now: every record, whatever GPU wrote it."""

import json
from functools import cache
from math import ceil, prod
from pathlib import Path

import pytest

from benchmarks.gpu_memory import KNOWN, predictions, step_with
from cs336kit import predict
from cs336kit.measure.recorded import records

ROOT = Path(__file__).parents[2]
RECORDS = records()
#: A part of a GPU's name → its major compute capability.
CAPABILITY = {"A100": 8, "L40": 8, "H100": 9, "H200": 9, "B200": 10}


@cache
def compared(name: str, *stages: str) -> dict[str, list[tuple[float, float]]]:
    """Label of a row → (predicted now, measured) for every training step in these stages of a record."""
    record = RECORDS[name]
    (capability,) = {major for part, major in CAPABILITY.items() if part in name}
    found: dict[str, list[tuple[float, float]]] = {}
    for stage in stages:
        for row in record["stages"].get(stage, {"rows": []})["rows"]:
            now = asked(json.dumps(row["setting"]), capability)
            found.setdefault(row["label"], []).append((now[row["label"]], row["measured"]))
    return found


@cache
def asked(setting: str, capability: int) -> dict[str, int]:
    return predictions(step_with(json.loads(setting)), capability)


EVERY_STEP = ("memory", "decoders")
EXACT = ("saved activations", "requested at the peak")


@pytest.mark.parametrize("name", RECORDS)
def test_one_in_twelve_steps_saves_and_requests_what_is_predicted(name):
    """In `make test`; all of them, and what is allocated and reserved, are predicted in `make proof`."""
    (capability,) = {major for part, major in CAPABILITY.items() if part in name}
    stages = [RECORDS[name]["stages"].get(stage, {"rows": []})["rows"] for stage in EVERY_STEP]
    for label in EXACT:
        rows = [row for stage in stages for row in stage if row["label"] == label][::12]
        assert len(rows) >= 5, "a record of few steps tells little"
        for row in rows:
            assert asked(json.dumps(row["setting"]), capability)[label] == row["measured"], row["setting"]


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("label", EXACT)
@pytest.mark.proof
def test_what_a_step_saves_and_requests_is_exact(name, label):
    found = compared(name, *EVERY_STEP)[label]
    assert found and all(predicted == measured for predicted, measured in found)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.proof
def test_what_is_allocated_is_within_half_a_percent(name):
    for predicted, measured in compared(name, *EVERY_STEP)["peak of a step"]:
        assert predicted == pytest.approx(measured, rel=0.005)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.proof
def test_what_is_reserved_is_within_one_percent_in_nine_of_ten_steps(name):
    errors = [predicted / measured - 1 for predicted, measured in compared(name, *EVERY_STEP)["reserved at the peak"]]
    # In few steps, one large tensor more or less finds a free block than on the device.
    assert sum(abs(error) <= 0.01 for error in errors) >= 0.9 * len(errors)
    assert all(abs(error) <= 0.12 for error in errors), errors


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.proof
def test_an_optimizer_needs_as_much_for_a_moment_as_is_predicted(name):
    sizes = [prod(shape) for shape in predict.parameter_shapes(KNOWN["gpt2"])]
    for row in RECORDS[name]["stages"].get("optimizers", {"rows": []})["rows"]:
        if row["label"] == "AdamW temporaries":
            way = row["setting"]["way"]
            how = {"implementation": "loop" if way == "course" else way, "weight_decay": True}
            predicted = predict.optimizer_step_bytes("adamw", sizes=sizes, **how)
            # The allocator rounds each tensor up, at most to the next two MiB.
            assert predicted <= row["measured"] <= predicted + 4 * 2**20, way


@pytest.mark.proof
def test_the_table_of_the_records_says_what_is_reserved():
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]]
    (row,) = (line for text in texts for line in text.splitlines() if line.startswith("| `max_memory_reserved`"))
    for name, said in zip(("NVIDIA H200", "NVIDIA H100 80GB HBM3"), row.strip("| ").split(" | ")[1:], strict=True):
        found = compared(name, *EVERY_STEP)["reserved at the peak"]
        errors = sorted(abs(predicted / measured - 1) for predicted, measured in found)
        near = [error for error in errors if error < 0.01]
        far = list(dict.fromkeys(str(round(100 * error)) for error in errors[len(near) :]))
        spread = " to ".join(dict.fromkeys((far[0], far[-1])))
        assert said == (
            f"{errors.count(0)} the same, {len(near)} within {ceil(1e3 * near[-1]) / 10} %, "
            f"{len(errors) - len(near)} off by {spread} %"
        )


@pytest.mark.proof
def test_the_note_says_what_the_records_show():
    found = [compared(name, *EVERY_STEP) for name in RECORDS]
    allocated, reserved = (
        sorted(abs(predicted / measured - 1) for steps in found for predicted, measured in steps[label])
        for label in ("peak of a step", "reserved at the peak")
    )
    near = [error for error in reserved if error <= 0.01]
    drawn = sum(len(compared(name, "decoders")["peak of a step"]) for name in RECORDS)
    said = predict.StepAllocation(0, 0, 0, 0, 0).note
    for words in (
        *(name.split()[1] for name in RECORDS),
        f"{len(reserved)} steps, {drawn} of them of random decoders",
        f"allocated within {ceil(1e3 * allocated[-1]) / 10} %, reserved exact in {reserved.count(0)}, within "
        f"{ceil(1e3 * near[-1]) / 10} % in {len(near)} and {round(100 * reserved[-1])} % at most",
    ):
        assert words in said, words
