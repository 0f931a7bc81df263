import contextlib
import gc
import json
import subprocess
import threading
import time
import venv
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import gpu, gpu_memory, gpu_peer, gpu_power, gpu_stages, gpu_training
from benchmarks.gpu_rows import Run, row
from benchmarks.gpu_stages import STAGES
from cs336kit import lm, measure
from cs336kit.measure.recorded import RECORDS
from cs336kit.measure.recorded import SCHEMA as SCHEMA_FILE
from tests.benchmarks.test_records import EVERY_STEP, compared

SCHEMA = json.loads(SCHEMA_FILE.read_text())


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Every stage once: the exit status, the record, and what was seen in each stage.

    made: device and type of each model's numbers; alive: how many models there were whenever memory was given back; graphs:
    what was compiled, its shape and batch.
    """
    seen = {name: SimpleNamespace(made=[], alive=[], graphs=[]) for name in STAGES}
    alive, decoder, free, compile_ = weakref.WeakSet(), lm.DecoderOnly, Run.free, torch.compile
    now = SimpleNamespace()

    def watched(name, measure):
        def stage(run):
            now.name, now.seen = name, seen[name]
            # What there is already is none of a stage's, and looking through all of it each time takes longer than the stage.
            gc.freeze()
            yield from measure(run)

        return stage

    def make(config, **options):
        now.seen.made.append((str(options.get("device")), options.get("dtype")))
        model = decoder(config, **options)
        alive.add(model)
        return model

    def look(run):
        gc.collect()
        free(run)
        now.seen.alive.append(len(alive))

    def see(graph, inputs):
        (output,) = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        batch = {i.shape[0] for i in inputs if i.dtype == torch.int64}
        now.seen.graphs.append((output.meta["example_value"].shape, batch))
        # Else one that was compiled with another attention is taken for it.
        assert torch.compiler.config.force_disable_caches
        return graph

    def compile_and_see(function, *, dynamic, backend):
        if now.name != "training step":
            return compile_(function, dynamic=dynamic, backend=backend)
        return compile_(function, dynamic=dynamic, backend=see, fullgraph=True)

    folder = tmp_path_factory.mktemp("records")
    gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        for name, stage in STAGES.items():
            patch.setitem(STAGES, name, stage._replace(measure=watched(name, stage.measure)))
        patch.setattr(lm, "DecoderOnly", make)
        patch.setattr(Run, "free", look)
        patch.setattr(torch, "compile", compile_and_see)
        status = gpu.main(["--here", "--device", "cpu", "--tiny", "--out", str(folder)])
    (path,) = [p for p in folder.iterdir() if p.suffix == ".json"]
    return status, json.loads(path.read_text()), seen


def test_every_stage_runs_and_fits_the_schema(rehearsal):
    status, data, _ = rehearsal
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


@pytest.mark.proof
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


def test_each_row_is_in_the_record_before_the_next_is_measured(monkeypatch, tmp_path):
    seen = []

    def slow(run: Run):
        for label in ("step", "MFU"):
            yield row(label, 1.0, "s")
            seen.append(json.loads((tmp_path / "cpu.json").read_text())["stages"]["products"])

    monkeypatch.setitem(STAGES, "products", STAGES["products"]._replace(measure=slow))
    assert gpu.main(["products", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    assert [[row["label"] for row in stage["rows"]] for stage in seen] == [["step"], ["step", "MFU"]]
    assert seen[0]["skipped"] == ["the rest of 'products': it was stopped"]
    assert json.loads((tmp_path / "cpu.json").read_text())["stages"]["products"]["skipped"] == []


def test_a_record_of_another_set_up_stays_beside_the_new_one(monkeypatch, tmp_path):
    how = {"rows": [ROW], "skipped": [], "wall_seconds": 1.0, "dry_run": True}
    path = gpu.write_stage(tmp_path, "products", **how)
    before = path.read_text()
    monkeypatch.setattr(torch.version, "cuda", "14.0")
    gpu.write_stage(tmp_path, "memory", **how)
    assert list(json.loads(path.read_text())["stages"]) == ["memory"]
    assert path.with_suffix(".json.before").read_text() == before and list(measure.records(tmp_path)) == ["cpu"]


def test_a_host_that_waits_for_its_copy_keeps_no_other_stream_waiting(monkeypatch):
    # Each copy takes 40 seconds, and what follows it 10.
    spans = [
        span
        for i in range(6)
        for span in (("copy", i, 40.0 * i, 40.0 * i + 40.0), ("compute", i, 40.0 * i + 40.0, 40.0 * i + 50.0))
    ]
    monkeypatch.setattr(measure, "overlap_timeline", lambda **options: spans)
    whole = [r for r in gpu_stages.overlap(Run(torch.device("cuda"), tiny=True)) if r["label"] == "whole"]
    assert [(r["setting"]["pinned"], r["measured"] / r["predicted"]) for r in whole] == [(True, 1.0), (False, 1.0)]


def test_idle_is_what_no_span_covers():
    assert gpu_training.idle_between([(0.0, 2.0), (1.0, 3.0), (4.0, 10.0)]) == pytest.approx(0.1)
    assert gpu_training.idle_between([(5.0, 6.0)]) == 0


@pytest.fixture
def profiled(monkeypatch):
    """Hand out a profile whose events on the device are (start, end, whether a name was given to the span)."""

    def write(*spans):
        events = [
            SimpleNamespace(
                device_type=torch.autograd.DeviceType.CUDA, is_user_annotation=named,
                time_range=SimpleNamespace(start=start, end=end),
            )
            for start, end, named in spans
        ]  # fmt: skip
        profile = SimpleNamespace(events=lambda: events)
        monkeypatch.setattr(torch.profiler, "profile", lambda activities: contextlib.nullcontext(profile))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    return write


def test_a_name_over_kernels_is_no_work(profiled):
    # Optimizer.step has one, which reaches from its first kernel to its last.
    profiled((0.0, 10.0, True), (0.0, 1.0, False), (9.0, 10.0, False))
    assert gpu_training.idle_share(lambda: None) == pytest.approx(0.8)


def test_a_profiler_that_sees_nothing_loses_no_step(profiled):
    profiled()
    run = Run(torch.device("cpu"), tiny=True)
    assert gpu_training._idle(run, lambda: None, {"batch": 2}) is None
    assert run.skipped == ["idle share {'batch': 2}: the profiler saw no kernel"]


def test_a_compiled_step_is_one_graph_with_its_loss_and_of_one_size(rehearsal):
    _, data, seen = rehearsal
    assert seen["training step"].graphs == [((), {4}), ((), {2})]
    settings = [r["setting"] for r in data["stages"]["training step"]["rows"] if r["label"] == "step"]
    assert [(s["batch"], s["compiled"]) for s in settings] == [(4, True), (2, True), (2, False)]


def test_models_are_made_where_and_in_what_they_stay(rehearsal):
    _, data, seen = rehearsal
    precisions = {r["setting"]["precision"] for r in data["stages"]["memory"]["rows"]}
    assert precisions == {"fp32", "bf16", "autocast"}
    kept = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}
    assert seen["memory"].made == [("cpu", kind) for kind in kept.values() for _ in range(2)]
    assert seen["optimizers"].made == [("cpu", None)] * 4


@pytest.mark.parametrize("stage", ["training step", "fp8 training", "memory"])
def test_a_model_is_gone_before_the_next_is_measured(rehearsal, stage):
    seen = rehearsal[2][stage]
    # In the stage of memory one look comes when a model has just been made.
    assert seen.made and seen.alive and not any(seen.alive[1::2] if stage == "memory" else seen.alive)


@pytest.mark.parametrize("attention", gpu_training.KERNELS)
def test_the_attention_that_is_named_comes_first(attention):
    with sdpa_kernel(gpu_training.KERNELS[attention], set_priority=True):
        first = SDPBackend(torch._C._get_sdp_priority_order()[0]).name
    assert first == f"{attention.upper()}_ATTENTION"


def test_no_other_kernel_stands_in_for_cudnn_s():
    with sdpa_kernel(gpu_training.KERNELS["cudnn"], set_priority=True):
        enabled = [f for f in ("flash", "mem_efficient", "math") if getattr(torch.backends.cuda, f"{f}_sdp_enabled")()]
        assert enabled == [] and torch.backends.cuda.cudnn_sdp_enabled()


#: What nanoGPT's model.py offers, on a model of one table.
MODEL = """
from dataclasses import dataclass
from torch import nn, optim
@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.n_embd)
    def forward(self, idx, targets):
        return None, nn.functional.cross_entropy((self.table(idx) @ self.table.weight.T).flatten(0, 1), targets.flatten())
    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return optim.AdamW(self.parameters(), lr=learning_rate, betas=betas, weight_decay=weight_decay)
"""


def test_a_clone_of_nanogpt_is_timed_beside_the_course(monkeypatch, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "empty").mkdir()
    run, how = Run(torch.device("cpu"), tiny=True), {"batch": 2, "sequence": 8, "flops": 1}
    monkeypatch.setenv("NANOGPT", str(tmp_path))
    (timed,) = gpu_peer.nanogpt(run, gpu_training.TINY, **how)
    assert timed["label"] == "nanoGPT's step" and timed["measured"] > 0 and run.skipped == []
    for folder in ("", str(tmp_path / "empty")):
        monkeypatch.setenv("NANOGPT", folder)
        assert list(gpu_peer.nanogpt(run, gpu_training.TINY, **how)) == []
    assert [reason.partition(":")[0] for reason in run.skipped] == ["nanoGPT's step"] * 2


@pytest.mark.proof
def test_the_table_of_the_gpus_is_that_of_the_records():
    said = (Path(gpu.__file__).parents[1] / "docs/gpu.md").read_text(encoding="utf-8")
    columns = [shown_of(gpu) for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")]
    for cells in zip(*columns, strict=True):
        row = " ".join(f"| {cell}" for cell in cells) + " |"
        assert row in said, row


def shown_of(gpu: str) -> list[str]:
    """The cells of a GPU's column in the table of docs/gpu.md."""
    stage = {name: measure.recorded(name, gpu=gpu) for name in STAGES}
    (whole,) = stage["overlap"].named("whole", pinned=True)
    fp8, bf16 = (stage["products"].named("product", precision=p, inner=32768)[0] for p in ("fp8", "bf16"))
    (step,) = stage["training step"].named("step", batch=64, precision="bf16")
    (token,) = stage["decoding"].named("decoding step", batch=1, how="graph")
    found = compared(gpu, *EVERY_STEP)
    for label in ("saved activations", "requested at the peak"):
        assert len(found[label]) == 96 and all(predicted == measured for predicted, measured in found[label])
    allocated = [predicted / measured - 1 for predicted, measured in found["peak of a step"]]
    reserved = sorted(abs(predicted / measured - 1) for predicted, measured in found["reserved at the peak"])
    near = [error for error in reserved if error < 0.01]
    least, most = f"{100 * reserved[len(near)]:.0f}", f"{100 * reserved[-1]:.0f}"
    off = f"{96 - len(near)} off by {least if least == most else f'{least} to {most}'} %"
    ms = [f"{1e3 * row.predicted:.{d}f} → {1e3 * row.measured:.{d}f} ms" for row, d in
          ((whole, 2), (fp8, 1), (bf16, 1), (step, 1), (token, 1))]  # fmt: skip
    ms[3] += f": MFU {step.predicted / step.measured:.2f}"
    return [
        "96 the same, to the byte",
        "96 the same, to the byte",
        f"at most {max(allocated):.2%} less or {-min(allocated):.2%} more".replace("%", " %"),
        f"{reserved.count(0)} the same, {len(near)} within {ceil(1e3 * near[-1]) / 10} %, {off}",
        *ms,
    ]


def test_steps_that_run_at_the_same_time_find_the_room_that_they_have_alone():
    room, now, sums, together = gpu_memory.Room(10), [], [], threading.Barrier(2, timeout=60)

    def step(size, meet=False):
        with room.of(size):
            now.append(size)
            sums.append(sum(now))
            if meet:
                together.wait()
            time.sleep(0.002)
            now.remove(size)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(step, [3, 7], [True, True]))  # each waits until the other runs
        list(pool.map(step, [3, 4, 5, 6, 2, 2, 9, 1]))
        assert max(sums) <= 10 and len(sums) == 10
        # What is too large for the device runs alone, and says so itself.
        list(pool.map(step, [30, 4, 5]))
    assert {30} < set(sums[10:]) <= {30, 4, 5, 9} and room.left == 10


def test_the_steps_of_a_record_are_those_that_were_measured(monkeypatch):
    """On a GPU whose processes are made up: every row beside its prediction, a step that fails with the reason."""
    asked = []

    def apart(step):
        asked.append(step.setting["model"])
        return "CUDA error: unknown" if step.setting["model"] == "decoder 8" else gpu_memory.predictions(step, 9)

    monkeypatch.setattr(gpu_memory, "_apart", apart)
    monkeypatch.setattr(gpu_memory, "DECODERS", 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 2**30))
    run = SimpleNamespace(
        device=torch.device("cuda"), tiny=False, seed=7, skip=lambda what, why: asked.append(f"{what[:9]}: {why}")
    )
    rows = list(gpu_memory.decoders(run))
    assert sorted(asked) == ["decoder 7", "decoder 8", "decoder 8: CUDA error: unknown", "decoder 9"]
    assert [r["setting"]["model"] for r in rows] == ["decoder 7"] * 4 + ["decoder 9"] * 4
    assert all(r["measured"] == r["predicted"] for r in rows)


@pytest.mark.parametrize("tiny", [False, True])
def test_a_process_makes_the_step_that_was_asked_for(tiny):
    """It gets the setting alone."""
    drawn = (gpu_memory.random_step(seed, tiny=tiny) for seed in range(20))
    for step in (*gpu_memory.known_steps(tiny), *drawn):
        assert gpu_memory.step_with(json.loads(json.dumps(step.setting))) == step


def test_a_gpu_without_room_for_the_large_model_skips_it(monkeypatch, tmp_path):
    def full(*sizes, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.96 GiB.")

    monkeypatch.setattr(lm, "Llama", full)
    assert gpu.main(["decoding", "--here", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    stage = json.loads((tmp_path / "cpu.json").read_text())["stages"]["decoding"]
    assert not stage["rows"] and "Tried to allocate" in stage["skipped"][0]


def test_products_in_a_row_are_timed_one_by_one(monkeypatch):
    """On a GPU whose events are a clock: each product takes as long as the clock says, and the first two do not count."""
    now = iter(range(1000))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = next(now) ** 2

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = []
    seconds = gpu_power._each(lambda: calls.append(1), 3)
    assert seconds == [(3**2 - 2**2) / 1e3, (4**2 - 3**2) / 1e3, (5**2 - 4**2) / 1e3] and len(calls) == 6
