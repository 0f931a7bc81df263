import json
import subprocess
import venv
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
import torch

from benchmarks import gpu, gpu_stages
from benchmarks.gpu_rows import Run, row
from benchmarks.gpu_stages import STAGES
from cs336kit import measure
from cs336kit.measure.recorded import RECORDS
from cs336kit.measure.recorded import SCHEMA as SCHEMA_FILE

SCHEMA = json.loads(SCHEMA_FILE.read_text())


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    status = gpu.main(["--here", "--device", "cpu", "--tiny", "--out", str(folder)])
    (path,) = [p for p in folder.iterdir() if p.suffix == ".json"]
    return status, json.loads(path.read_text())


def test_every_stage_runs_and_fits_the_schema(rehearsal):
    status, data = rehearsal
    assert status == 0, data
    jsonschema.validate(data, SCHEMA)
    assert list(data["stages"]) == list(STAGES) and data["dry_run"] is True
    for name, stage in data["stages"].items():
        assert stage["rows"] or name in ("overlap", "ranks"), name
        assert all(
            (row["repeats"] and row["measured"] > 0) or row["label"].endswith("temporaries") for row in stage["rows"]
        )


def test_skipped_things_are_named(rehearsal):
    stages = rehearsal[1]["stages"]
    assert stages["overlap"]["skipped"] == ["overlap: this run has no CUDA device"]
    assert any(reason.startswith("tf32:") for reason in stages["products"]["skipped"])


def test_saved_activations_are_predicted_to_the_byte(rehearsal):
    rows = [r for r in rehearsal[1]["stages"]["memory"]["rows"] if r["label"] == "saved activations"]
    assert len(rows) == 6 and all(row["measured"] == row["predicted"] for row in rows)


def test_the_peak_of_a_step_is_predicted(rehearsal):
    rows = [r for r in rehearsal[1]["stages"]["memory"]["rows"] if r["label"] == "peak of a step"]
    assert len(rows) == 6 and all(row["measured"] == pytest.approx(row["predicted"], rel=0.01) for row in rows)


def test_a_rehearsal_is_not_shown_in_a_lesson(rehearsal, tmp_path):
    (tmp_path / "cpu.json").write_text(json.dumps(rehearsal[1]))
    assert not measure.recorded("products", folder=tmp_path)


def test_a_failing_stage_keeps_its_rows(monkeypatch, tmp_path, capsys):
    def broken(run: Run):
        yield row("product", 1.0, "s")
        raise ZeroDivisionError("on purpose")

    monkeypatch.setitem(STAGES, "products", STAGES["products"]._replace(measure=broken))
    assert gpu.main(["products", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 1
    stage = json.loads((tmp_path / "cpu.json").read_text())["stages"]["products"]
    assert len(stage["rows"]) == 1 and "ZeroDivisionError: on purpose" in stage["skipped"][0]
    assert "skipped the rest of 'products' failed" in capsys.readouterr().out


def test_a_stage_of_two_words_needs_no_quotes(monkeypatch, tmp_path):
    quick = STAGES["training step"]._replace(measure=lambda run: iter([row("step", 1.0, "s")]))
    monkeypatch.setitem(STAGES, "training step", quick)
    assert gpu.main(["training-step", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "cpu.json").read_text())["stages"]) == ["training step"]


def test_time_is_up(tmp_path, capsys):
    assert gpu.main(["products", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path), "--minutes", "-1"]) == 0
    assert "not started, time is up: 'products'" in capsys.readouterr().out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu", "--tiny"], "may not write among the records"),
        (["produce", "--device", "cpu", "--tiny", "--out", "x"], "unknown stage 'produce'"),
        (["--device", "gpu", "--out", "x"], "is not a device"),
    ],
)
def test_wrong_questions_are_sentences(arguments, message, capsys):
    assert gpu.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu.main([]) == 2
    assert "has no CUDA device" in capsys.readouterr().err


ROW = {"label": "product", "setting": {}, "predicted": None, "measured": 2.0, "unit": "s", "repeats": [2.0, 2.1]}


def test_writing_adds_stages_and_keeps_the_others(tmp_path):
    for stage in ("products", "memory"):
        path = gpu.write_stage(tmp_path, stage, rows=[ROW], skipped=[], wall_seconds=1.0, dry_run=True)
    data = json.loads(path.read_text())
    jsonschema.validate(data, SCHEMA)
    assert list(data["stages"]) == ["products", "memory"] and data["torch"] == torch.__version__
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_only_a_gpu_writes_among_the_records(tmp_path):
    before = sorted(RECORDS.glob("*"))
    with pytest.raises(RuntimeError, match="only a full run on a CUDA device"):
        gpu.write_stage(RECORDS, "products", rows=[ROW], skipped=[], wall_seconds=1.0, dry_run=True)
    assert sorted(RECORDS.glob("*")) == before


#: What torch brings along, and no more.
BARE = (
    "torch", "torchgen", "functorch", "triton", "nvidia", "cuda", "numpy", "numpy.libs", "typing_extensions.py", "sympy",
    "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
)  # fmt: skip


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python that has torch, numpy and what torch needs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", symlinks=True)
    there = Path(find_spec("torch").origin).parents[1]
    (place,) = (folder / "venv").glob("lib/python*/site-packages")
    for name in BARE:
        if (there / name).exists():
            (place / name).symlink_to(there / name)
    return folder / "venv" / "bin" / "python"


def test_torch_and_numpy_are_enough_from_an_empty_directory(bare, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(gpu.__file__).parents[1]))
    # The stage's process is one of the bare Python; this one only starts it.
    monkeypatch.setattr("sys.executable", str(bare))
    status = gpu.main(["bandwidths", "--device", "cpu", "--tiny", "--out", "out"])
    said, problem = capfd.readouterr()
    assert status == 0, problem
    assert "[1 of 1] bandwidths" in said and "1 stages in" in said and "1 rows in" in said
    record = json.loads((tmp_path / "out" / "cpu.json").read_text())
    jsonschema.validate(record, SCHEMA)
    assert record["stages"]["bandwidths"]["rows"]


def test_a_stage_that_hangs_takes_no_other_with_it(monkeypatch, tmp_path, capsys):
    started = []

    def process(command, *, timeout, **options):
        started.append((command[3], timeout))
        if "products" in command:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", process)
    assert gpu.main(["products", "memory", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 1
    assert [name for name, _ in started] == ["products", "memory"]
    said = capsys.readouterr().out
    assert "stopped: 'products' took more than" in said and "failed or stopped: 'products'" in said


def test_a_half_is_a_call_of_nine_minutes_at_most():
    for half in (1, 2):
        assert sum(stage.seconds for stage in STAGES.values() if stage.half == half) <= 9 * 60


def test_rows_are_in_the_record_before_their_stage_ends(monkeypatch, tmp_path):
    seen = []

    def slow(run: Run):
        yield row("product", 1.0, "s")
        seen.append(json.loads((tmp_path / "cpu.json").read_text())["stages"]["products"])

    monkeypatch.setattr(gpu, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setitem(STAGES, "products", STAGES["products"]._replace(measure=slow))
    assert gpu.main(["products", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    assert len(seen[0]["rows"]) == 1 and seen[0]["skipped"] == ["the rest of 'products': it was stopped"]
    assert json.loads((tmp_path / "cpu.json").read_text())["stages"]["products"]["skipped"] == []


def test_idle_is_what_no_span_covers():
    assert gpu_stages.idle_between([(0.0, 2.0), (1.0, 3.0), (4.0, 10.0)]) == pytest.approx(0.1)
    assert gpu_stages.idle_between([(5.0, 6.0)]) == 0
