import copy
import dataclasses
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest
import torch
from a_full_disk import full_disk
from torch import nn

from cs336kit import lm
from cs336kit.lm import Batches, CheckpointError, load_checkpoint, save_checkpoint, seed_everything
from cs336kit.lm.pretrain import small_llama

pytestmark = pytest.mark.torch

V = 17


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(V, width)
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)  # its running statistics are buffers, which a checkpoint must hold too
        self.head = nn.Linear(width, V, bias=False)

    def forward(self, x):
        h = self.dropout(torch.relu(self.hidden(self.embedding(x))))
        h = h + 0.1 * random.random() + 0.1 * float(np.random.rand())  # draws from every global stream
        return self.head(self.norm(h.transpose(1, 2)).transpose(1, 2))


OPTIMIZERS = {
    "SGD": lambda p: lm.SGD(p, lr=0.1),
    "Momentum": lambda p: lm.Momentum(p, lr=0.1),
    "AdaGrad": lambda p: lm.AdaGrad(p, lr=0.1),
    "RMSProp": lambda p: lm.RMSProp(p, lr=0.01),
    "Adam": lambda p: lm.Adam(p, lr=0.01),
    "AdamW": lambda p: lm.AdamW(p, lr=0.01, weight_decay=0.1),
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "torch AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "torch NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "torch RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "torch Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def new_run(optimizer="AdamW", *, seed=0, width=16, policy="fp32"):
    seed_everything(seed)
    policy = lm.precision(policy)
    model = policy.prepare(Net(width))
    batches = Batches(np.arange(500) * 7 % V, batch=4, sequence=8, seed=seed)
    return {"model": model, "optimizer": OPTIMIZERS[optimizer](model.parameters()), "data": batches, "policy": policy}


def advance(run, steps, first_step=0):
    schedule = lambda step: 0.01 / (1 + step)  # noqa: E731
    history = lm.train(
        run["model"],
        run["optimizer"],
        run["data"],
        steps=steps,
        first_step=first_step,
        schedule=schedule,
        policy=run["policy"],
    )
    return history.losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_and_twenty_equal_forty(tmp_path, name):
    straight = new_run(name)
    losses = advance(straight, 40)
    first = new_run(name)
    before = advance(first, 20)
    save_checkpoint(tmp_path / "c.pt", step=20, **first)
    second = new_run(name, seed=123)
    restored = load_checkpoint(tmp_path / "c.pt", **second)
    assert restored == {"step": 20, "extra": None}
    assert before + advance(second, 20, first_step=restored["step"]) == losses
    for a, b in zip(straight["model"].state_dict().values(), second["model"].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("policy", ["autocast", "autocast-fp16", "fp8"])
def test_resuming_in_other_precisions(tmp_path, policy):
    losses = advance(new_run(policy=policy), 6)
    first = new_run(policy=policy)
    before = advance(first, 3)
    save_checkpoint(tmp_path / "c.pt", step=3, **first)
    second = new_run(policy=policy, seed=5)
    assert before + advance(second, 3, first_step=load_checkpoint(tmp_path / "c.pt", **second)["step"]) == losses


def test_each_part_matters(tmp_path):
    """Leaving any one part out changes the losses that follow."""
    losses = advance(new_run(), 8)
    first = new_run()
    advance(first, 4)
    save_checkpoint(tmp_path / "c.pt", step=4, **first)
    for left_out in ("model", "optimizer", "data", "rng", None):
        second = new_run(seed=3)
        parts = {name: part for name, part in second.items() if name != left_out}
        load_checkpoint(tmp_path / "c.pt", restore_rng=left_out != "rng", **parts)
        assert (advance(second, 4, first_step=4) == losses[4:]) == (left_out is None), left_out


def test_the_last_k_stay(tmp_path):
    model = nn.Linear(1, 1)
    for step in range(6):
        save_checkpoint(tmp_path / "c.pt", model=model, step=step, keep=3)
    steps = {file.name: load_checkpoint(file, restore_rng=False)["step"] for file in tmp_path.iterdir()}
    assert steps == {"c.pt": 5, "c.pt.1": 4, "c.pt.2": 3}


def test_file_then_rename_then_folder_are_flushed(tmp_path, flushed):
    save_checkpoint(tmp_path / "c.pt", model=nn.Linear(1, 1))
    assert flushed == ["file", "rename", "folder"]


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("kind", ["torch", "pickle", "inside a checkpoint"])
def test_loading_runs_no_code(tmp_path, kind):
    path, marker, model = tmp_path / "evil.pt", tmp_path / "executed", nn.Linear(1, 1)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Malicious(str(marker))))
    elif kind == "torch":
        torch.save(Malicious(str(marker)), path)
    else:
        save_checkpoint(path, model=model)
        content = torch.load(path)
        torch.save({**content, "extra": {"note": Malicious(str(marker))}}, path)
    with pytest.raises(CheckpointError, match="refused"):
        load_checkpoint(path, model=model)
    assert not marker.exists()
    torch.load(path, weights_only=False) if kind != "pickle" else pickle.loads(path.read_bytes())
    assert marker.exists()  # the file was truly malicious


def test_keys_and_shapes_that_do_not_fit_are_listed_and_nothing_is_loaded(tmp_path):
    run = new_run()
    advance(run, 1)
    save_checkpoint(tmp_path / "c.pt", **run)
    other = new_run(width=8)
    other["model"].extra = nn.Linear(2, 2, bias=False)
    del other["model"].head
    before = {name: value.clone() for name, value in other["model"].state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "c.pt", **other)
    message = str(caught.value)
    assert "extra.weight is missing in the file" in message
    assert "head.weight is in the file and not in the model" in message
    assert "hidden.weight has shape (16, 16) in the file and (8, 8) in the model" in message
    assert all(torch.equal(before[name], value) for name, value in other["model"].state_dict().items())


def test_an_optimizer_that_does_not_fit(tmp_path):
    run = new_run()
    advance(run, 1)
    save_checkpoint(tmp_path / "c.pt", model=run["model"], optimizer=run["optimizer"])
    two_groups = lm.AdamW([{"params": [p]} for p in list(run["model"].parameters())[:2]], lr=0.1)
    with pytest.raises(CheckpointError, match=r"groups of \[1, 1\] parameters, the file of \[6\]"):
        load_checkpoint(tmp_path / "c.pt", optimizer=two_groups)
    reordered = lm.AdamW(list(run["model"].parameters())[::-1], lr=0.1)
    with pytest.raises(CheckpointError, match="optimizer state exp_avg of parameter 1 has shape"):
        load_checkpoint(tmp_path / "c.pt", optimizer=reordered)
    save_checkpoint(tmp_path / "m.pt", model=run["model"])
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load_checkpoint(tmp_path / "m.pt", optimizer=run["optimizer"])


def _lacks(state):
    for each in state.values():
        del each["exp_avg_sq"]


def _changes(name, make):
    def change(state):
        state[0][name] = make(state[0][name])

    return change


@pytest.mark.parametrize("kind", ["AdamW", "torch AdamW"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state[0].pop("exp_avg_sq"), "optimizer state exp_avg_sq of parameter 0 is missing in the file"),
        (_lacks, "optimizer state exp_avg_sq of parameter 3 is missing in the file"),
        (_changes("exp_avg", lambda old: 0.5), "optimizer state exp_avg of parameter 0 is a float in the file, not a tensor"),
        (_changes("exp_avg", lambda old: None), "exp_avg of parameter 0 is a NoneType in the file, not a tensor"),
        (
            _changes("exp_avg", torch.Tensor.long),
            r"exp_avg of parameter 0 is torch.int64 in the file and torch.float32 in this optimizer",
        ),
        (_changes("exp_avg_sq", torch.Tensor.double), "exp_avg_sq of parameter 0 is torch.float64 in the file"),
        (_changes("exp_avg", lambda old: old[:, :8]), rf"exp_avg of parameter 0 has shape \({V}, 8\) in the file, its parameter"),
        (_changes("exp_avg", lambda old: old[2:]), rf"exp_avg of parameter 0 has shape \({V - 2}, 16\) in the file"),
        (_changes("step", lambda old: float("nan")), "step of parameter 0 is nan in the file, which is not a count"),
        (_changes("step", lambda old: torch.tensor(float("inf"))), r"step of parameter 0 is tensor\(inf\) in the file"),
        (_changes("step", lambda old: -1), "step of parameter 0 is -1 in the file, which is not a count"),
        (_changes("step", lambda old: True), "step of parameter 0 is True in the file, which is not a count"),
        (_changes("step", lambda old: torch.ones(2)), "which is not a count"),
        (lambda state: state[0].update(ax=torch.zeros(V, 16)), "ax of parameter 0 is in the file, and this optimizer keeps none"),
    ],
)  # fmt: skip
def test_optimizer_state_that_does_not_fit_is_refused_before_anything_is_loaded(tmp_path, kind, change, sentence):
    run = new_run(kind)
    advance(run, 1)
    save_checkpoint(tmp_path / "c.pt", **run, step=1)
    content = torch.load(tmp_path / "c.pt", weights_only=True)
    change(content["optimizer"]["state"])
    torch.save(content, tmp_path / "c.pt")
    before = copy.deepcopy(run["model"].state_dict()), copy.deepcopy(run["optimizer"].state_dict())
    advance_of = torch.random.get_rng_state()
    with pytest.raises(CheckpointError, match=sentence):
        load_checkpoint(tmp_path / "c.pt", model=run["model"], optimizer=run["optimizer"])
    assert torch.equal(torch.random.get_rng_state(), advance_of)
    for old, new in zip(before, (run["model"].state_dict(), run["optimizer"].state_dict()), strict=True):
        assert str(old) == str(new)


def test_to_ask_what_a_step_leaves_changes_nothing_and_calls_no_hook(tmp_path):
    run = new_run("torch AdamW")
    advance(run, 1)
    save_checkpoint(tmp_path / "c.pt", **run, step=1)
    called = []
    run["optimizer"].register_step_pre_hook(lambda *_: called.append("before"))
    run["optimizer"].register_step_post_hook(lambda *_: called.append("after"))
    torch.optim.lr_scheduler.LambdaLR(run["optimizer"], lambda step: 1.0)  # wraps the optimizer's step
    called.clear()
    weights = copy.deepcopy(run["model"].state_dict())
    load_checkpoint(tmp_path / "c.pt", optimizer=run["optimizer"], restore_rng=False)
    assert called == [] and str(weights) == str(run["model"].state_dict())
    advance(run, 1)
    assert called == ["before", "after"]


def test_state_of_a_shape_of_its_own_is_read_back(tmp_path):
    # LBFGS keeps vectors of all parameters together with its first one.
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    ours, theirs = (torch.optim.LBFGS(model.parameters(), lr=0.1) for model in models)
    x = torch.randn(4, 3)

    def step(model, optimizer):
        def loss():
            optimizer.zero_grad()
            value = model(x).square().sum()
            value.backward()
            return value

        optimizer.step(loss)

    step(models[0], ours)
    save_checkpoint(tmp_path / "run", model=models[0], optimizer=ours)
    load_checkpoint(tmp_path / "run", model=models[1], optimizer=theirs)
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        step(model, optimizer)
    assert torch.equal(models[0].weight, models[1].weight)


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    run = new_run("Momentum")
    advance(run, 1)
    save_checkpoint(tmp_path / "c.pt", **run)
    other = new_run("AdamW")
    with pytest.raises(CheckpointError, match="the optimizer is AdamW, and the file holds the state of Momentum"):
        load_checkpoint(tmp_path / "c.pt", **other)
    advance(other, 1)  # nothing was loaded: it still steps


def test_a_file_of_the_right_format_with_other_content(tmp_path):
    model, path = nn.Linear(2, 2), tmp_path / "c.pt"
    content = torch.load(save_checkpoint(path, model=model))
    torch.save({name: part for name, part in content.items() if name not in ("rng", "model")}, path)
    with pytest.raises(CheckpointError, match="it lacks model, rng"):
        load_checkpoint(path, model=model)
    torch.save({**content, "model": {"weight": 1, "bias": content["model"]["bias"]}}, path)
    with pytest.raises(CheckpointError, match="weight is not a tensor in the file"):
        load_checkpoint(path, model=model)


def test_damaged_foreign_and_absent_files(tmp_path):
    path = save_checkpoint(tmp_path / "c.pt", model=nn.Linear(30, 30))
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
    torch.save({"some": 1}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of save_checkpoint"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "absent.pt")


def test_of_an_error_with_several_lines_the_first_is_shown(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path / "c.pt", model=nn.Linear(2, 2))

    def broken(*_, **__):
        raise RuntimeError("the first line\nthe second")

    monkeypatch.setattr(torch, "load", broken)
    with pytest.raises(CheckpointError, match=r"c\.pt is damaged: the first line$"):
        load_checkpoint(path)


def test_every_flipped_bit_of_the_tensors_is_found(tmp_path):
    path = save_checkpoint(tmp_path / "c.pt", model=nn.Linear(8, 8))
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        tensor = next(entry for entry in archive.infolist() if entry.filename.endswith("/data/0"))
        data = archive.read(tensor)
    start = whole.index(data)
    for position in range(start, start + len(data), 7):
        harmed = bytearray(whole)
        harmed[position] ^= 1 << position % 8
        path.write_bytes(harmed)
        with pytest.raises(CheckpointError, match="checksum of its part .*/data/0 is wrong"):
            load_checkpoint(path)


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    model = nn.Linear(1, 1)
    save_checkpoint(tmp_path / "c.pt", model=model, step=1, extra={"loss": 1.5, "names": ["a"], "t": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"\['extra'\]\['loss'\] is a numpy.float64"):
        save_checkpoint(tmp_path / "c.pt", model=model, step=2, extra={"loss": np.float64(1.5)})
    assert load_checkpoint(tmp_path / "c.pt")["step"] == 1
    with pytest.raises(CheckpointError, match=r"\['model'\]\['weight'\] is on the meta device, which holds no values"):
        save_checkpoint(tmp_path / "c.pt", model=nn.Linear(1, 1, device="meta"), step=2)
    assert load_checkpoint(tmp_path / "c.pt")["step"] == 1
    with pytest.raises(ValueError, match="keep"):
        save_checkpoint(tmp_path / "c.pt", model=model, keep=0)


def states(run):
    """Every bit that a load may change, global generators included."""
    tensors = [t.clone() for t in run["model"].state_dict().values()]
    tensors += [t.clone() for state in run["optimizer"].state.values() for t in state.values()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in run["optimizer"].param_groups]
    position = run["data"].state_dict()
    tensors += [position["generator"], torch.get_rng_state()]
    return tensors, [groups, position["drawn"], run["policy"].state_dict(), random.getstate(), np.random.get_state()[2]]


def unchanged(run, before):
    tensors, rest = states(run)
    return rest == before[1] and len(tensors) == len(before[0]) and all(map(torch.equal, tensors, before[0]))


def test_a_flipped_bit_or_a_cut_is_refused_or_harmless(tmp_path):
    """300 bits all over the file and 50 cuts: right values or a CheckpointError that changed nothing, never in between."""
    run = new_run("Momentum")
    advance(run, 1)
    whole = save_checkpoint(tmp_path / "c.pt", step=1, **run).read_bytes()
    truth = states(run)
    with zipfile.ZipFile(tmp_path / "c.pt") as archive:
        records = whole.index(b"PK\x01\x02")  # the directory at the end: no checksum covers it
        names = [entry.header_offset for entry in archive.infolist()]
    draw = random.Random(0)
    places = [draw.randrange(len(whole)) for _ in range(100)]
    places += [draw.randrange(records, len(whole)) for _ in range(100)]
    places += [draw.choice(names) + draw.randrange(64) for _ in range(100)]
    damaged = [whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :] for place in places]
    damaged += [whole[: draw.randrange(len(whole))] for _ in range(50)]
    other, outcomes = new_run("Momentum", seed=1), []
    before = states(other)
    for content in damaged:
        try:
            load_checkpoint(io.BytesIO(content), **other)
        except CheckpointError:
            outcomes.append("refused")
            assert unchanged(other, before)
        else:
            outcomes.append("right")
            assert unchanged(other, truth)
            other = new_run("Momentum", seed=1)
            before = states(other)
    assert outcomes.count("refused") > 150 and outcomes.count("right") > 20


def test_an_entry_that_is_marked_as_a_folder_is_refused(tmp_path):
    """torch.load takes it for an empty one, and the weights for whatever lies in memory."""
    path = save_checkpoint(tmp_path / "c.pt", model=nn.Linear(8, 8))
    damaged = bytearray(path.read_bytes())
    entry = damaged.rindex(b"PK\x01\x02", 0, damaged.rindex(b"/data/0"))
    for place, bit in ((38, 0x10), (8, 0x1)):  # or as encrypted
        damaged[entry + place] ^= bit
        with pytest.raises(CheckpointError, match="not marked as a plain file"):
            load_checkpoint(io.BytesIO(damaged))
        damaged[entry + place] ^= bit


@pytest.mark.parametrize(
    ("part", "change", "sentence"),
    [
        ("rng", lambda rng: {**rng, "torch": torch.zeros(3, dtype=torch.uint8)}, "its rng state was refused"),
        ("rng", lambda rng: {"python": rng["python"]}, "its rng state was refused: 'numpy'"),
        ("rng", lambda rng: None, "its rng state was refused"),
        ("rng", lambda rng: {**rng, "numpy": [*rng["numpy"][:2], 10**9, 0, 0.0]}, "its rng state was refused: NumPy's"),
        ("rng", lambda rng: {**rng, "numpy": [*rng["numpy"][:2], -1, 0, 0.0]}, "its rng state was refused: NumPy's"),
        ("step", lambda step: -1, "its step is -1, which is not a count"),
        ("step", lambda step: "seven", "its step is 'seven', which is not a count"),
        ("model", lambda model: [1, 2], "its model state is a list, not a dict"),
        (
            "model",
            lambda m: {k: v.long() if v.dim() == 2 else v for k, v in m.items()},
            "is torch.int64 in the file and",
        ),
        (
            "model",
            lambda m: {**m, "norm.bias": m["norm.bias"].to_sparse()},
            "norm.bias is torch.sparse_coo on cpu in the",
        ),
        ("model", lambda m: {**m, "norm.bias": m["norm.bias"].to("meta")}, "norm.bias is torch.strided on meta in the"),
        ("optimizer", lambda o: {"state": o["state"]}, "its optimizer state is malformed: KeyError"),
        (
            "optimizer",
            lambda o: {**o, "param_groups": [{"params": list(range(6))}]},
            "lr of the optimizer's group 0 is None",
        ),
        ("optimizer", lambda o: {**o, "param_groups": [{**o["param_groups"][0], "lr": "fast"}]}, "group 0 is 'fast'"),
        ("optimizer", lambda o: {**o, "param_groups": [{**o["param_groups"][0], "lr": -1.0}]}, "lr must be a finite"),
        ("data", lambda data: {"drawn": 3}, "its data state was refused: 'generator'"),
        ("policy", lambda policy: {"scale": 2.0}, "its policy state was refused: 'clean_steps'"),
    ],
)
def test_a_part_that_does_not_fit_leaves_every_part_as_it_was(tmp_path, part, change, sentence):
    run = new_run(policy="autocast-fp16")
    advance(run, 2)
    content = torch.load(save_checkpoint(tmp_path / "c.pt", step=2, **run))
    torch.save({**content, part: change(content[part])}, tmp_path / "c.pt")
    other = new_run(seed=4, policy="autocast-fp16")
    advance(other, 1)
    before = states(other)
    with pytest.raises(CheckpointError, match=r"nothing was loaded") as caught:
        load_checkpoint(tmp_path / "c.pt", **other)
    assert sentence in str(caught.value)
    assert unchanged(other, before)


class Stubborn(nn.Linear):
    """A module with a state beside its tensors, which takes one of its own number alone, or none at all."""

    def __init__(self, number, takes=True):
        super().__init__(2, 2)
        self.number, self.takes = number, takes

    def get_extra_state(self):
        return self.number

    def set_extra_state(self, state):
        self.number = state
        if not self.takes or state == 13:
            raise RuntimeError(f"{state} brings bad luck")


@pytest.mark.parametrize("takes", [True, False])
def test_a_module_that_refuses_its_own_kind_of_state_leaves_the_model_as_it_was(tmp_path, takes):
    save_checkpoint(tmp_path / "c", model=nn.Sequential(nn.Linear(2, 2), Stubborn(1), Stubborn(13), nn.Linear(2, 2)))
    model = nn.Sequential(nn.Linear(2, 2), Stubborn(2, takes), Stubborn(3), nn.Linear(2, 2))
    before, optimizer = copy.deepcopy(model.state_dict()), torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        CheckpointError, match="nothing was loaded: its model state was refused: 1?[13] brings bad luck"
    ):
        load_checkpoint(tmp_path / "c", model=model)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items() if isinstance(value, torch.Tensor))
    assert [model[1].number, model[2].number] == [2, 3]
    assert all(
        mine is theirs for mine, theirs in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True)
    )
    model[1].takes = True
    save_checkpoint(tmp_path / "c", model=nn.Sequential(nn.Linear(2, 2), Stubborn(1), Stubborn(4), nn.Linear(2, 2)))
    load_checkpoint(tmp_path / "c", model=model)
    assert [model[1].number, model[2].number] == [1, 4]


def test_open_files_are_written_and_read(tmp_path):
    run, other, buffer = new_run(), new_run(seed=2), io.BytesIO()
    advance(run, 2)
    assert save_checkpoint(buffer, step=2, extra={"note": "here"}, **run) is None
    buffer.seek(0)
    assert load_checkpoint(buffer, **other) == {"step": 2, "extra": {"note": "here"}}
    assert unchanged(other, states(run))
    with open(tmp_path / "c.pt", "wb") as file:
        save_checkpoint(file, step=3, **run)
    assert load_checkpoint(tmp_path / "c.pt", **other)["step"] == 3
    with pytest.raises(CheckpointError, match="the file is truncated or not a checkpoint"):
        load_checkpoint(io.BytesIO(b"PK"))


def test_a_newer_format_is_named(tmp_path):
    content = torch.load(save_checkpoint(tmp_path / "c.pt", model=nn.Linear(1, 1)))
    torch.save({**content, "format": "cs336kit checkpoint 2"}, tmp_path / "c.pt")
    with pytest.raises(
        CheckpointError, match="has format 'cs336kit checkpoint 2', .*another version of cs336kit. Update"
    ):
        load_checkpoint(tmp_path / "c.pt")


def test_a_tensor_of_another_class_is_refused_before_it_is_written(tmp_path):
    class Labeled(torch.Tensor):
        pass

    model = nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match=r"\['extra'\]\['t'\] is a .*Labeled, which could not be read back"):
        save_checkpoint(tmp_path / "c.pt", model=model, extra={"t": torch.ones(1).as_subclass(Labeled)})
    assert os.listdir(tmp_path) == []


def test_saving_onto_a_folder_leaves_nothing_behind(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(IsADirectoryError, match="run is a folder: give the name of a file in it"):
        save_checkpoint(tmp_path / "run", model=nn.Linear(1, 1))
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == []


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limit for the size of files")
def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path):
    path, model = tmp_path / "c.pt", nn.Linear(300, 300)
    save_checkpoint(path, model=model, step=1)
    with full_disk(100_000), pytest.raises(OSError, match="File too large after 100,000 bytes.*Free space") as said:
        save_checkpoint(path, model=model, step=2)
    assert "could not be written: " in str(said.value)
    assert load_checkpoint(path, model=model)["step"] == 1 and os.listdir(tmp_path) == ["c.pt"]


@pytest.mark.proof
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_hundred_kills_never_lose_the_last_good_checkpoint(tmp_path):
    """One process imports torch and forks a saver 100 times; each saver is killed at a random moment of its saving.

    The saver reports every step that it has saved. Afterwards the file must load, hold that step or the one after,
    and hold the weights of its step.
    """
    script = """
        import json, os, random, signal, sys, time
        import torch
        from torch import nn
        from cs336kit.lm import load_checkpoint, save_checkpoint
        path, draw, model = sys.argv[1], random.Random(0), nn.Linear(100, 100)

        def fill(step):
            with torch.no_grad():
                model.weight.fill_(step)

        def save(step):
            fill(step)
            save_checkpoint(path, model=model, step=step, keep=2)

        start = time.perf_counter()
        for step in range(1, 21):
            save(step)
        duration = (time.perf_counter() - start) / 20
        kills = during = lost = torn = 0
        for _ in range(100):
            first = load_checkpoint(path, restore_rng=False)["step"] + 1
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                for step in range(first, first + 10**6):
                    os.write(writer, step.to_bytes(4, "big"))  # "I begin to save this step"
                    save(step)
                    os.write(writer, (0).to_bytes(4, "big"))  # "it is saved"
            os.close(writer)
            os.read(reader, 4)  # it has begun
            time.sleep(draw.random() * 1.5 * duration)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            kills += os.WIFSIGNALED(status)
            words, said = [first], b""
            while part := os.read(reader, 65536):
                said += part
            os.close(reader)
            words += [int.from_bytes(said[i : i + 4], "big") for i in range(0, len(said), 4)]
            begun = max(words)
            saved = begun if words[-1] == 0 else begun - 1
            during += words[-1] != 0
            loaded = load_checkpoint(path, model=model, restore_rng=False)["step"]
            lost += loaded not in (saved, begun)
            torn += not bool((model.weight == loaded).all())
            load_checkpoint(path + ".1", restore_rng=False)
        print(json.dumps([kills, during, lost, torn]), flush=True)
        os._exit(0)  # torch takes most of a second to end
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "c.pt")],
        capture_output=True, text=True, timeout=290, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills, during, lost, torn = json.loads(done.stdout)
    assert (kills, lost, torn) == (100, 0, 0)
    assert during > 50  # most of the kills hit in the middle of a save


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_from_meta_is_filled_by_a_checkpoint(tmp_path, tied):
    config = small_llama(layers=1, d_model=16, heads=2, context=8)
    config = dataclasses.replace(config, tied_head=tied)
    # A base of its own, since a table of the usual one would fit any model.
    model, empty = lm.DecoderOnly(config, rope_base=7.0), lm.DecoderOnly(config, rope_base=7.0, device="meta")
    save_checkpoint(tmp_path / "run", model=model)
    with pytest.raises(
        CheckpointError, match="the model is on the meta device, which holds no values: call its to_empty"
    ):
        load_checkpoint(tmp_path / "run", model=empty)
    filled = empty.to_empty(device="cpu")
    load_checkpoint(tmp_path / "run", model=filled)
    tokens = torch.randint(256, (2, 8))
    assert filled is empty and torch.equal(filled(tokens), model(tokens))
    assert (filled.head.weight is filled.embedding.weight) == tied


def test_two_tensors_do_not_become_one_that_is_shared(tmp_path):
    config = small_llama(layers=1, d_model=16, heads=2, context=8)
    untied, tied = lm.DecoderOnly(config), lm.DecoderOnly(dataclasses.replace(config, tied_head=True))
    before = tied.embedding.weight.clone()
    save_checkpoint(tmp_path / "run", model=untied)
    with pytest.raises(
        CheckpointError,
        match=r"- embedding\.weight and head\.weight are one tensor in the model, and differ in the file",
    ):
        load_checkpoint(tmp_path / "run", model=tied)
    assert torch.equal(tied.embedding.weight, before)
    with torch.no_grad():
        untied.head.weight.copy_(untied.embedding.weight)
    save_checkpoint(tmp_path / "run", model=untied)
    load_checkpoint(tmp_path / "run", model=tied)
    tokens = torch.randint(256, (2, 8))
    assert torch.equal(tied(tokens), untied(tokens))


def test_a_rate_that_numpy_has_computed_is_saved_as_a_plain_number(tmp_path):
    run = new_run("torch SGD")
    lm.train(
        run["model"], run["optimizer"], run["data"], steps=2, schedule=lambda step: 1e-3 * np.cos(step),
        after_step=lambda done: save_checkpoint(tmp_path / "run", step=done, **run),
    )  # fmt: skip
    assert load_checkpoint(tmp_path / "run", **run)["step"] == 2
