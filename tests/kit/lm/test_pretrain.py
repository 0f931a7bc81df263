import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

from cs336kit import lm, predict
from cs336kit.command import main
from cs336kit.lm.pretrain import adamw, check_run, held_out_loss, rate, small_llama, split
from cs336kit.measure import flops as count_flops

pytestmark = pytest.mark.torch

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
    # Not the fused kernel's, which computes the scores twice.
    run = lm.pretrain(CONFIG, **RUN)
    model = lm.DecoderOnly(CONFIG, attention="eager")
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
    one = held_out_loss(model, tokens[:17], sequence=16, policy=lm.precision("fp32"))
    assert one == pytest.approx(losses[0], abs=1e-5)
    with torch.no_grad():
        each = functional.cross_entropy(model(torch.tensor(tokens[:32, None]))[:, 0], torch.tensor(tokens[1:33]))
    short = held_out_loss(model, tokens[:33], sequence=1, policy=lm.precision("fp32"))
    assert short == pytest.approx(each.item(), abs=1e-5)


def test_the_held_out_loss_is_computed_in_the_precision_of_the_run():
    torch.manual_seed(0)
    model, row = lm.DecoderOnly(CONFIG), torch.arange(17) * 9
    with torch.no_grad():
        in_fp32 = functional.cross_entropy(model(row[None, :-1])[0], row[1:]).item()
        with torch.autocast("cpu", torch.bfloat16):
            in_bf16 = functional.cross_entropy(model(row[None, :-1])[0].float(), row[1:]).item()
    found = held_out_loss(model, row.numpy(), sequence=16, policy=lm.precision("autocast"))
    assert found == pytest.approx(in_bf16, abs=1e-6) and abs(found - in_fp32) > 1e-5


@pytest.mark.parametrize(("windows", "size"), [(64, 32), (66, 22), (37, 1)])
def test_the_held_out_loss_takes_as_many_rows_at_once_as_divide_them_up_to_32(windows, size):
    seen = []
    model = lm.DecoderOnly(CONFIG)
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    held_out_loss(model, np.arange(windows + 1), sequence=1, policy=lm.precision("fp32"))
    assert seen == [size] * (windows // size)


@pytest.mark.parametrize(("width", "d_ff"), [(8, 24), (10, 32), (24, 64), (96, 256), (100, 272)])
def test_a_gated_mlp_is_8_thirds_of_the_width_in_eights(width, d_ff):
    sizes = {"layers": 1, "d_model": width, "heads": 1, "context": 4}
    config = small_llama(**sizes)
    assert (config.d_ff, config.vocab, config.tied_head) == (d_ff, 256, False)
    assert small_llama(**sizes, d_ff=7).d_ff == 7


def test_the_rate_rises_for_a_tenth_and_falls_to_nothing():
    rates = [rate(step, max_lr=3.0, steps=40) for step in range(41)]
    assert rates[:5] == pytest.approx([0, 0.75, 1.5, 2.25, 3]) and rates[22] == pytest.approx(1.5) and rates[40] == 0
    group = adamw([torch.nn.Parameter(torch.ones(1))], 0.5).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.5, (0.9, 0.95), 0.1)


def test_the_largest_seed_and_the_shortest_text_that_can_be():
    check_run(CONFIG, **RUN, seed=2**32 - 1)
    with pytest.raises(ValueError, match=re.escape("seed must be below 2**32 = 4294967296, got 4294967296")):
        check_run(CONFIG, **RUN, seed=2**32)
    with pytest.raises(ValueError, match="has 16, and a sequence of 16 with its target takes 17"):
        split(np.zeros(169, int), config=CONFIG, sequence=16)
    assert [len(part) for part in split(np.zeros(170, int), config=CONFIG, sequence=16)] == [153, 17]
    split(np.full(170, 255), config=CONFIG, sequence=16)


def test_a_run_says_what_it_cost():
    run = lm.pretrain(CONFIG, **RUN | {"steps": 1})
    run = replace(run, parameters=1234, tokens=5000, text_tokens=2000, flops=1.5e9, validation_loss=2.5, seconds=0.25)
    words = "1,234 parameters, 5,000 tokens (2.5 times the text), 1.5e+09 FLOPs: 2.500 nats held out, in 0.2 s"
    assert str(run) == words and run.as_dict()["losses"] == list(run.losses)


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
        ({"data": np.full(1000, 256)}, "the data contain token 256, but a vocabulary of 256 ends at 255"),
    ],
)
def test_what_cannot_be_is_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.pretrain(CONFIG, **{**RUN, **change})
    with pytest.raises(ValueError, match="config must be a TransformerConfig"):
        lm.pretrain("gpt2", **RUN)


COMMAND = ["train", "--layers", "1", "--d-model", "16", "--heads", "2", "--batch", "4", "--sequence", "16"]


def test_the_command_writes_the_run(tmp_path, capsys, flushed):
    out = tmp_path / "run.json"
    assert main([*COMMAND, "--steps", "12", "--max-lr", "0.02", "--out", str(out)]) == 0 and flushed == [
        "file",
        "rename",
        "folder",
    ]
    written = json.loads(out.read_text())
    run = lm.pretrain(CONFIG, **RUN)
    assert written["losses"] == list(run.losses) and written["validation_loss"] == run.validation_loss
    assert predict.TransformerConfig.from_dict(written["config"]) == CONFIG
    assert str(run).split(" nats")[0] in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_the_ranks_of_torchrun_the_first_speaks_and_writes(tmp_path, capsys, monkeypatch, rank):
    monkeypatch.setenv("RANK", str(rank))
    assert main([*COMMAND, "--steps", "1", "--out", str(tmp_path / "run.json")]) == 0
    assert "held out" in capsys.readouterr().out if rank == 0 else not capsys.readouterr().out
    assert (tmp_path / "run.json").exists() == (rank == 0)


def test_a_text_of_ones_own(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("ab" * 500)
    assert main([*COMMAND, "--steps", "1", "--data", str(text)]) == 0
    assert "0.1 times the text" in capsys.readouterr().out
    text.write_bytes(b"caf\xe9" * 500)
    assert main([*COMMAND, "--steps", "1", "--data", str(text)]) == 2
    said = f"--data {text} is no text in UTF-8, from byte 3 on: save it as UTF-8, or name another file\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "steps must be a positive whole number"),
        (["--steps", "1", "--heads", "3"], "heads"),
        (["--steps", "1", "--device", "moon"], "unknown device of this machine 'moon'"),
        (["--steps", "1", "--out", "nowhere/run.json"], "there is no folder nowhere for --out"),
        (["--steps", "1", "--out", "."], "--out . is a folder: name a file in it, such as run.json"),
        (["--steps", "1", "--data", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--steps", "1", "--threads", "0"], "threads must be a positive whole number"),
    ],
)
def test_what_the_command_cannot_do_is_a_sentence(arguments, sentence, capsys):
    assert main([*COMMAND, *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_numbers_of_numpy_are_written_as_plain_ones():
    whole = {name: np.int64(RUN[name]) for name in ("batch", "sequence", "steps")}
    given = {**whole, "max_lr": np.float32(0.02), "seed": np.int64(1)}
    for layout in (None, "dp=1"):
        run = lm.pretrain(CONFIG, **given, layout=layout)
        assert json.loads(json.dumps(run.as_dict()))["steps"] == 12 and run.seed == 1
