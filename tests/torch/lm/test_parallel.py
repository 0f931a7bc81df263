"""The decoder under layouts, on real processes: the same loss, gradients, norm and next weights as one model has."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist

from cs336kit import lm, measure
from cs336kit.lm.parallel import check_runnable
from cs336kit.lm.runs_of_ranks import joined
from cs336kit.predict import TransformerConfig
from cs336kit.predict.layouts import as_layout

GPT = TransformerConfig(layers=4, d_model=32, heads=4, vocab=61, context=16)
LLAMA = TransformerConfig(
    layers=4, d_model=32, heads=4, kv_heads=4, d_ff=48, vocab=61, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
MIXTURE = dataclasses.replace(LLAMA, experts=4, experts_per_token=2)
#: layouts of four ranks; the vocabulary of 61 divides by none
CASES = [
    (GPT, "pp=2,dp=2,microbatches=4,schedule=gpipe"), (GPT, "dp=2,fsdp=2"), (GPT, "zero1=2,tp=2,sp"), (GPT, "pp=2,zero2=2"),
    (LLAMA, "zero2=4,microbatches=2"), (LLAMA, "fsdp=2,tp=2,sp,microbatches=2"), (LLAMA, "pp=2,tp=2"), (MIXTURE, "dp=2,ep=2"),
]  # fmt: skip


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def beside_one_model(cases, parallelize):
    """(layout, largest differences of loss, gradients and norm, difference of the loss after a step) of each case."""
    warnings.simplefilter("ignore")
    found = []
    for config, layout in cases:
        torch.manual_seed(0)
        model, alone = lm.DecoderOnly(config), lm.DecoderOnly(config)
        alone.load_state_dict(model.state_dict())
        x, y = torch.randint(config.vocab, (2, 8, 16))
        loss = lm.cross_entropy(alone(x), y)
        loss.backward()
        ranks = parallelize(model, layout)
        optimizer, one = ranks.optimizer(adamw), adamw(alone.parameters())
        first = float(ranks.backward(x, y) - loss)
        gradients = ranks.gathered(gradients=True)
        wanted = {name: parameter.grad for name, parameter in alone.named_parameters()}
        assert set(gradients) - {"head.weight"} == set(wanted) - {"head.weight"}
        # Gradients of key biases are 0 but for rounding, so the yardstick is the largest of all.
        largest = max(float(gradient.abs().max()) for gradient in wanted.values())
        second = max(float((gradients[name] - wanted[name]).abs().max()) for name in wanted) / largest
        norm = lm.clip_gradients(alone.parameters(), max_norm=1.0)
        third = float(ranks.clip(max_norm=1.0) / norm - 1)
        optimizer.step(), one.step()
        optimizer.zero_grad(), one.zero_grad()
        found.append((layout, first, second, third, float(ranks.backward(x, y) - lm.cross_entropy(alone(x), y))))
    return found


def test_every_layout_has_the_loss_and_the_gradients_of_one_model():
    # What the arguments name is imported once, before the ranks part.
    for found in measure.run_ranks(beside_one_model, CASES, lm.parallelize, ranks=4, device="cpu"):
        assert len(found) == len(CASES)
        for layout, *differences, after in found:
            assert max(map(abs, differences)) < 5e-6, (layout, differences)
            assert abs(after) < 1e-4, (layout, after)


@pytest.mark.parametrize(
    ("config", "layout", "says"),
    [
        (LLAMA, "tp=3", "tp=3 does not divide 4 heads"),
        (GPT, "pp=3", "pp=3 does not divide 4 layers"),
        (LLAMA, "dp=2", "a layout of 2 ranks, and 1 run: start 2 (torchrun --nproc-per-node 2)"),
        (dataclasses.replace(LLAMA, kv_heads=2), "tp=4", "a layout of 4 ranks"),
    ],
)
def test_what_does_not_fit_is_a_sentence(config, layout, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        lm.parallelize(lm.DecoderOnly(config), layout)


def test_what_predict_alone_knows_the_cost_of_is_refused():
    for config, layout, says in (
        (LLAMA, "cp=2", "cp=2 is counted by predict, and lm does not run it: leave cp out"),
        (dataclasses.replace(LLAMA, dropout=0.1), "tp=2", "the same dropout on what they share: give a model without"),
        (MIXTURE, "fsdp=2,ep=2", "ep beside zero1, zero2, fsdp or pp is counted by predict, and lm runs it with dp"),
    ):
        layout = as_layout(layout)
        with pytest.raises(ValueError, match=re.escape(says)):
            check_runnable(lm.DecoderOnly(config), layout, layout.count)
    with pytest.raises(ValueError, match="a DecoderOnly is divided here, got Linear"):
        lm.parallelize(torch.nn.Linear(1, 1), "dp=1")


def test_a_process_of_torchrun_takes_the_gpu_of_its_number(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: taken.append((backend, options)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: taken.append("left"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    gpu = torch.device("cuda", 3)
    with joined("cuda") as where:
        assert where == gpu and taken == [gpu]
    monkeypatch.setenv("WORLD_SIZE", "4")
    with joined("cuda"):
        assert taken[1:] == [gpu, ("nccl", {"device_id": gpu})]
    with joined("cpu") as where:
        assert where == torch.device("cpu")
    assert taken[3:] == ["left", ("gloo", {}), "left"]


def test_one_rank_needs_no_process_group_and_is_the_model_itself():
    torch.manual_seed(0)
    model = lm.DecoderOnly(LLAMA)
    x, y = torch.randint(61, (2, 4, 16))
    ranks = lm.parallelize(model, "microbatches=2")
    assert torch.allclose(ranks.backward(x, y), lm.cross_entropy(model(x), y))
    assert set(ranks.gathered(gradients=True)) == {name for name, _ in model.named_parameters()}
    with pytest.raises(ValueError, match="give a multiple of 2"):
        ranks.backward(x[:3], y[:3])


def test_torchrun_trains_on_two_ranks_as_one_process_does(tmp_path):
    asked = ["--layers=2", "--d-model=16", "--heads=2", "--steps=4", "--batch=4", "--sequence=8", "--threads=1"]
    text = tmp_path / "text.txt"
    text.write_text("to predict is to count before it runs. " * 12, encoding="utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    run += ["--rdzv-endpoint=localhost:0", "-m", "cs336kit", "train", *asked, f"--data={text}"]
    run += ["--layout=tp=2,sp,microbatches=2", f"--out={tmp_path / 'run.json'}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held out") == 1
    found = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    config = TransformerConfig.from_dict(found["config"])
    names = ("batch", "sequence", "steps", "max_lr", "seed")
    alone = lm.pretrain(config, data=lm.encode(text.read_text("utf-8")), **{name: found[name] for name in names})
    assert found["losses"] == pytest.approx(alone.losses, abs=1e-4)
    assert found["validation_loss"] == pytest.approx(alone.validation_loss, abs=1e-4)
