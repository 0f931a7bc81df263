"""Checkpoints that continue a run to the last bit, survive a kill in mid-write, and run no code when they are read."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cs336kit.lm.runs import rng_state, set_rng_state
from cs336kit.lm.whole_file import flush_folder, keep_older, save_beside
from cs336kit.predict import Breakdown
from cs336kit.predict._common.checks import non_negative_int, positive_int

FORMAT = "cs336kit checkpoint 1"
PARTS = {"step", "model", "optimizer", "optimizer_class", "data", "policy", "extra", "rng"}
#: The plain types that can be read back without running code (and torch.Tensor, dict, list and tuple).
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size)


class CheckpointError(ValueError):
    """The file is no checkpoint, is damaged, or does not fit the objects that it should fill."""


def save_checkpoint(
    path: str | os.PathLike,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    data: Any = None,
    policy: Any = None,
    extra: dict | None = None,
    keep: int = 1,
) -> Path:
    """Write everything a run needs to go on: model, optimizer, steps done, data position, loss scale, every global RNG.

    `data` and `policy` are anything with state_dict and load_state_dict, such as `Batches` and a precision policy;
    `extra` holds plain numbers, strings and tensors of your own. With `keep=k` the k - 1 checkpoints before this one
    stay as path.1 (the newest of them) … path.(k-1).
    The file is written beside, flushed to the disk with its folder, and renamed: at every moment `path` is a whole
    checkpoint, the old one or the new one. One process at a time may save to a path. A disk that is full raises
    OSError with what to do, and leaves the checkpoints as they were. The learning-rate schedule is a function of the
    step and needs no saving. Generators of your own are not saved, except those inside `data`.
    """
    path = Path(path)
    positive_int("keep", keep)
    content = {
        "format": FORMAT,
        "step": non_negative_int("step", step),
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "optimizer_class": None if optimizer is None else type(optimizer).__name__,
        "data": None if data is None else data.state_dict(),
        "policy": None if policy is None else policy.state_dict(),
        "extra": extra,
        "rng": rng_state(),
    }
    _refuse_unreadable(content, "checkpoint")
    beside = save_beside(content, path)
    keep_older(path, keep=keep)
    os.replace(beside, path)
    flush_folder(path.parent)
    return path


def load_checkpoint(
    path: str | os.PathLike,
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    data: Any = None,
    policy: Any = None,
    restore_rng: bool = True,
) -> dict:
    """Fill the objects given from a checkpoint and return {"step", "extra"}.

    Reading runs no code: only tensors and plain values are unpickled, anything else is refused. All keys and shapes are
    compared before the first value is written, so that a checkpoint that does not fit changes nothing; the
    CheckpointError lists every key and shape that differs. The checksums of the file are compared first.
    `restore_rng=False` leaves Python's, NumPy's and torch's global generators alone, as evaluation should. Tensors
    are read to the CPU and copied to where the objects live.
    """
    content = _read(Path(path))
    parts = {"model": model, "optimizer": optimizer, "data": data, "policy": policy}
    problems = [
        f"it holds no {name} state" for name, part in parts.items() if part is not None and content[name] is None
    ]
    if model is not None and content["model"] is not None:
        problems += _model_differences(model.state_dict(), content["model"])
    if optimizer is not None and content["optimizer"] is not None:
        problems += _optimizer_differences(optimizer, content["optimizer"], content["optimizer_class"])
    if problems:
        raise CheckpointError(f"{path} does not fit, and nothing was loaded:\n- " + "\n- ".join(problems))
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(content[name])
    if restore_rng:
        set_rng_state(content["rng"])
    return {"step": content["step"], "extra": content["extra"]}


def checkpoint_bytes(path: str | os.PathLike) -> Breakdown:
    """The bytes of a checkpoint file by what they hold: tensor data, pickle, zip records and padding.

    The first is what a formula predicts; the other two are the container's: the pickle names keys, shapes and plain
    values, and every tensor is one zip entry with two headers, aligned to 64 bytes.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    tensors = sum(entry.file_size for entry in entries if "/data/" in entry.filename)
    pickled = sum(entry.file_size for entry in entries if entry.filename.endswith("/data.pkl"))
    rest = os.path.getsize(path) - tensors - pickled
    return Breakdown({"tensor data": tensors, "pickle": pickled, "zip records and padding": rest}, unit="bytes")


def _refuse_unreadable(value: Any, where: str) -> None:
    """Refuse, before writing, what reading would refuse: a subclass of float, say, as NumPy's numbers are."""
    if isinstance(value, torch.Tensor):
        return
    if type(value) in (dict, OrderedDict):
        for key, part in value.items():
            _refuse_unreadable(key, where)
            _refuse_unreadable(part, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            _refuse_unreadable(part, f"{where}[{index}]")
    elif type(value) not in PLAIN:
        raise CheckpointError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which could not be read back: a "
            "checkpoint holds tensors, numbers, strings, lists and dicts. Convert it first, with float() say."
        )


def _read(path: Path) -> dict:
    with open(path, "rb") as file:
        start = file.read(2)
    if not zipfile.is_zipfile(path):
        if start.startswith(pickle.PROTO):
            raise CheckpointError(f"{path} was refused: it is a bare pickle, which runs code when it is read.")
        raise CheckpointError(f"{path} is truncated, or no checkpoint: it has no zip directory at its end.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # torch.load itself does not compare the checksums
        if broken is not None:
            raise CheckpointError(f"{path} is damaged: the checksum of its part {broken} is wrong. Take an older one.")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was refused: it holds something other than tensors and plain values, which could run code when "
            "it is read. Get the checkpoint from its source again, or load nothing from there."
        ) from error
    except CheckpointError:
        raise
    except (RuntimeError, EOFError, LookupError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is damaged: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of save_checkpoint: its format is not {FORMAT!r}.")
    if missing := PARTS - content.keys():
        raise CheckpointError(f"{path} is not a whole checkpoint: it lacks {', '.join(sorted(missing))}.")
    return content


def _model_differences(expected: dict, found: dict) -> list[str]:
    problems = [f"{name} is missing in the file" for name in expected if name not in found]
    problems += [f"{name} is in the file and not in the model" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        if not isinstance(expected[name], torch.Tensor):
            continue
        if not isinstance(found[name], torch.Tensor):
            problems.append(f"{name} is no tensor in the file")
        elif expected[name].shape != found[name].shape:
            shapes = f"{tuple(found[name].shape)} in the file and {tuple(expected[name].shape)} in the model"
            problems.append(f"{name} has shape {shapes}")
    return sorted(problems)


def _optimizer_differences(optimizer: torch.optim.Optimizer, found: dict, found_class: str) -> list[str]:
    if type(optimizer).__name__ != found_class:
        return [f"the optimizer is {type(optimizer).__name__}, and the file holds the state of {found_class}"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    found_sizes = [len(group["params"]) for group in found["param_groups"]]
    if sizes != found_sizes:
        return [f"the optimizer has groups of {sizes} parameters, the file of {found_sizes}"]
    problems = []
    ours = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip((i for g in found["param_groups"] for i in g["params"]), ours, strict=True):
        for name, value in found["state"].get(index, {}).items():
            # Some optimizers keep one number per row or per column: those stretch to the parameter's shape.
            if isinstance(value, torch.Tensor) and not _stretches(value.shape, parameter.shape):
                shapes = f"shape {tuple(value.shape)} in the file, its parameter {tuple(parameter.shape)}"
                problems.append(f"optimizer state {name} of parameter {index} has {shapes}")
    return problems


def _stretches(shape: torch.Size, target: torch.Size) -> bool:
    return len(shape) <= len(target) and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(target), strict=False)
    )
