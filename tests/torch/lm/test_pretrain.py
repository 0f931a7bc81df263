import json

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

from cs336kit import lm, predict
from cs336kit.cli import main
from cs336kit.lm.pretrain import held_out_loss, split
from cs336kit.measure import flops as count_flops

SIZES = {"layers": 1, "d_model": 16, "heads": 2, "d_ff": 48, "vocab": 256, "context": 16}
STYLE = {"norm": "rmsnorm", "positions": "rope", "mlp": "swiglu", "bias": "none", "tied_head": False}
CONFIG = predict.TransformerConfig(**SIZES, **STYLE)
RUN = {"batch": 4, "sequence": 16, "steps": 12, "max_lr": 0.02}


def test_a_run_learns_and_is_the_same_again():
    first, again = lm.pretrain(CONFIG, **RUN, seed=3), lm.pretrain(CONFIG, **RUN, seed=3)
    assert first.losses == again.losses and first.validation_loss == again.validation_loss
    assert len(first.losses) == 12 and first.losses[-1] < first.losses[0] - 1
    assert first.losses != lm.pretrain(CONFIG, **RUN, seed=4).losses
    assert first.tokens == 12 * 4 * 16 and first.text_tokens == len(lm.course_text().encode()) * 9 // 10 + 1


def test_its_flops_are_those_that_torch_counts():
    run = lm.pretrain(CONFIG, **RUN)
    model = lm.DecoderOnly(CONFIG)
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    counted = count_flops(lambda: lm.cross_entropy(model(tokens), tokens).backward())
    assert run.flops == 12 * counted.total
    assert run.parameters == sum(weight.numel() for weight in model.parameters())


def test_the_held_out_loss_takes_every_target_once():
    tokens = np.random.default_rng(0).integers(0, 256, 16 * 7 + 3)
    model = lm.DecoderOnly(CONFIG)
    rows = [torch.tensor(tokens[i : i + 17]) for i in range(0, 16 * 7, 16)]
    with torch.no_grad():
        losses = [functional.cross_entropy(model(row[None, :-1])[0], row[1:]).item() for row in rows]
    found = held_out_loss(model, tokens, sequence=16, policy=lm.precision("fp32"))
    assert found == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_last_tenth_is_held_out():
    learned, held_out = split(np.arange(200) % 250, config=CONFIG, sequence=16)
    assert len(held_out) == 20 and held_out[0] == learned[-1] + 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps must be a positive whole number"),
        ({"max_lr": -1}, "max_lr must be a finite number above 0"),
        ({"sequence": 17}, "longer than the model's context of 16: shorten it"),
        ({"seed": 2**32}, "seed must be below"),
        ({"precision": "fp7"}, "unknown precision policy"),
        ({"data": np.arange(100)}, "the held-out tenth of 100 tokens has 10"),
        ({"data": np.full(1000, 256)}, "the data hold token 256, and a vocabulary of 256 ends at 255"),
    ],
)
def test_what_cannot_be_is_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.pretrain(CONFIG, **{**RUN, **change})
    with pytest.raises(ValueError, match="config must be a TransformerConfig"):
        lm.pretrain("gpt2", **RUN)


COMMAND = ["train", "--layers", "1", "--d-model", "16", "--heads", "2", "--batch", "4", "--sequence", "16"]


def test_the_command_writes_the_run(tmp_path, capsys):
    out = tmp_path / "run.json"
    assert main([*COMMAND, "--steps", "12", "--max-lr", "0.02", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    run = lm.pretrain(CONFIG, **RUN)
    assert written["losses"] == list(run.losses) and written["validation_loss"] == run.validation_loss
    assert predict.TransformerConfig.from_dict(written["config"]) == CONFIG
    assert str(run).split(" nats")[0] in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_text_of_ones_own(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("ab" * 500)
    assert main([*COMMAND, "--steps", "1", "--data", str(text)]) == 0
    assert "0.1 times the text" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "steps must be a positive whole number"),
        (["--steps", "1", "--heads", "3"], "heads"),
        (["--steps", "1", "--device", "moon"], "unknown device of this machine 'moon'"),
        (["--steps", "1", "--out", "nowhere/run.json"], "there is no folder nowhere for --out"),
        (["--steps", "1", "--data", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--steps", "1", "--threads", "0"], "threads must be a positive whole number"),
    ],
)
def test_what_the_command_cannot_do_is_a_sentence(arguments, sentence, capsys):
    assert main([*COMMAND, *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
