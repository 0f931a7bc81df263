import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cs336kit import lm, predict
from cs336kit.command import main
from cs336kit.lm import sweep

pytestmark = pytest.mark.torch

ONE = {"layers": 1, "d_model": 8, "budget": 5e8}
STEPS = sweep.steps_of(sweep.tiny(1, 8), 5e8)


@pytest.fixture(scope="module")
def run():
    return lm.train_one(**ONE, seed=1)


@pytest.fixture(scope="module")
def record():
    return lm.recorded_sweep()


def test_the_record_is_the_grid(record):
    cells = [{name: getattr(run, name) for name in sweep.grid()[0]} for run in record.runs]
    key = str
    assert sorted(cells, key=key) == sorted(sweep.grid(), key=key)
    assert record.text_tokens == len(lm.course_text().encode()) * 9 // 10 + 1


def test_every_run_follows_from_its_cell(record):
    for run in record.runs:
        config = sweep.tiny(run.layers, run.d_model)
        assert run.parameters == predict.parameters(config).total
        assert run.inner_parameters == run.parameters - 2 * 256 * run.d_model
        assert run.steps == sweep.steps_of(config, run.budget) and run.max_lr == sweep.learning_rate(run.d_model)
        assert run.flops == pytest.approx(run.budget, rel=0.02)
        assert run.curve[0][0] == run.steps // 16 and 0.9 < run.loss < 3.3


def test_each_budget_has_a_valley(record):
    for runs in record.slices().values():
        sizes, losses = [run.parameters for run in runs], [run.loss for run in runs]
        bottom, _ = lm.valley(sizes, losses)
        assert min(sizes) < bottom < max(sizes)


def test_the_size_of_a_tiny_model_is_that_of_its_module():
    model = lm.DecoderOnly(sweep.tiny(2, 48))
    outside = model.embedding.weight.numel() + model.head.weight.numel()
    assert sum(p.numel() for p in model.parameters()) - outside == predict.accounting.without_embeddings(model.config)


@pytest.mark.parametrize(("d_model", "heads"), [(8, 1), (16, 2), (24, 3), (32, 2), (48, 3)])
def test_heads_are_8_wide_below_a_width_of_32_and_16_from_there(d_model, heads):
    assert sweep.tiny(1, d_model).heads == heads


def test_narrow_models_learn_at_one_rate_and_wide_ones_slower():
    assert [sweep.learning_rate(width) for width in (8, 13, 16, 80)] == pytest.approx([0.03, 0.03, 0.025, 0.005])


def test_a_budget_of_one_step_is_enough():
    config = sweep.tiny(1, 8)
    step = predict.training_flops(config, batch=8, sequence=64).total
    assert [sweep.steps_of(config, budget) for budget in (step, 0.6 * step, 2.4 * step)] == [1, 1, 2]


def test_a_run_is_what_was_asked_for(run):
    assert (run.layers, run.d_model, run.seed, run.budget) == (1, 8, 1, 5e8)
    assert run.tokens == run.steps * 8 * 64 and run.curve[-1][0] == run.steps
    assert run.flops == pytest.approx(run.budget, rel=0.5 / run.steps)


def test_a_curve_has_twelve_points_at_logarithmic_distances():
    losses = [10 + 0.12346 * step for step in range(320)]
    found = sweep.curve(SimpleNamespace(steps=320, losses=losses))
    assert [step for step, _ in found] == [round(step) for step in np.geomspace(20, 320, 12)]
    # The mean of the last tenth: of steps 20 and 19, counted from 1, of ..., of the 32 last ones.
    assert found[0][1] == pytest.approx(10 + 0.12346 * 18.5, abs=5.1e-5) == round(found[0][1], 4)
    assert found[-1][1] == pytest.approx(10 + 0.12346 * 303.5, abs=5.1e-5)
    short = sweep.curve(SimpleNamespace(steps=11, losses=range(11)))
    assert [step for step, _ in short] == [1, 2, 3, 4, 5, 6, 7, 9, 11]
    assert [loss for _, loss in short] == [step - 1 for step, _ in short]


def test_seconds_and_text_of_a_sweep(run, record):
    done = lm.run_sweep([], known=[replace(run, seconds=2.0), replace(run, seconds=0.5)])
    assert done.seconds == 2.5 and (done.batch, done.sequence) == (8, 64)
    assert done.text_tokens == record.text_tokens


def test_a_run_is_the_same_again(run):
    again = lm.train_one(**ONE, seed=1)
    assert (again.loss, again.curve) == (run.loss, run.curve)
    assert again.loss != lm.train_one(**ONE, seed=2).loss


def test_what_is_written_is_read_and_flushed(run, tmp_path, flushed):
    path = tmp_path / "sweep.json"
    done = lm.run_sweep([], known=[run])
    sweep.write_sweep(done, path)
    assert flushed == ["file", "rename", "folder"]
    assert lm.recorded_sweep(path) == done and [each.name for each in tmp_path.iterdir()] == ["sweep.json"]


def test_a_sweep_goes_on_where_it_was(run):
    seen = []
    cells = [{**ONE, "seed": seed} for seed in (1, 2)]
    done = lm.run_sweep(cells, known=[run], after=lambda so_far: seen.append(len(so_far.runs)))
    assert seen == [2] and done.runs[0] is run and [each.seed for each in done.runs] == [1, 2]
    assert list(done.slices()) == [5e8]


def broken(run, tmp_path, **change):
    path = tmp_path / "sweep.json"
    sweep.write_sweep(lm.run_sweep([], known=[run]), path)
    data = json.loads(path.read_text())
    data["runs"] = [{**each, **change} for each in data["runs"]]
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"loss": -1.0}, "loss must be a finite number above 0"),
        ({"loss": "good"}, "loss must be a finite number above 0"),
        ({"flops": 17}, "cannot have 17 FLOPs"),
        ({"tokens": 17}, "and 17 tokens"),
        ({"curve": [[1, 2.0]]}, "must increase and end at"),
        ({"curve": [[1, 3.0], [1, 2.0], [STEPS, 2.0]]}, "must increase and end at"),
        ({"mood": "good"}, "is not a sweep record"),
    ],
)
def test_a_record_that_cannot_be_is_refused(run, tmp_path, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.recorded_sweep(broken(run, tmp_path, **change))


def test_what_cannot_be_swept_is_a_sentence(tmp_path, capsys):
    with pytest.raises(ValueError, match="the sweep is empty"):
        lm.run_sweep([])
    with pytest.raises(ValueError, match="less than one step of this model"):
        lm.train_one(1, 8, budget=1e6)
    path = tmp_path / "sweep.json"
    assert main(["sweep", "--out", str(tmp_path / "missing" / "sweep.json"), "--budget", "1e10"]) == 2
    assert "missing for --out: make it first" in capsys.readouterr().err
    assert main(["sweep", "--out", str(path), "--budget", "7e9"]) == 2
    assert "the sweep has no budget of 7e+09 FLOPs, only of 1e+10" in capsys.readouterr().err
    sweep.write_sweep(replace(lm.recorded_sweep(), torch="1.0"), str(path))
    assert main(["sweep", "--out", str(path), "--budget", "1e10"]) == 2
    assert "was made with torch 1.0, and this is" in capsys.readouterr().err
    path.write_text("[]")
    assert main(["sweep", "--out", str(path), "--budget", "1e10"]) == 2
    assert "is not a sweep record" in capsys.readouterr().err
