"""Checkpoints that resume a run bit for bit, survive a kill during the write, and run no code when loaded."""

import contextlib
import copy
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from cs336kit.files import followed, replacing
from cs336kit.lm import optimizer_state
from cs336kit.lm.runs import rng_state, set_rng_state
from cs336kit.lm.whole_file import keep_older, save_beside
from cs336kit.predict.checks import boolean, non_negative_int, positive_int

FORMAT = "cs336kit checkpoint 1"
PARTS = {"step", "model", "optimizer", "optimizer_class", "data", "policy", "extra", "rng"}
#: The plain types that can be read back without running code (and tensors, dict, list and tuple).
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size)


class CheckpointError(ValueError):
    """The file is not a checkpoint, is damaged, or does not fit the objects to be loaded."""


def save_checkpoint(
    path: str | os.PathLike[str] | BinaryIO, *, model: nn.Module, optimizer: torch.optim.Optimizer | None = None,
    step: int = 0, data: Any = None, policy: Any = None, extra: dict[str, Any] | None = None, keep: int = 1,
) -> Path | None:  # fmt: skip
    """Save everything a run needs to resume: model, optimizer, steps done, data position, loss scale, every global RNG.

    `data` and `policy` are any objects with state_dict and load_state_dict, such as `Batches` and a precision policy;
    `extra` holds plain numbers, strings and tensors of your own. With `keep=k`, the k - 1 checkpoints before this one
    are kept as path.1 (the newest of them) … path.(k-1).
    The file is written under another name, flushed to the disk with its folder, and renamed: `path` is a complete
    checkpoint at every moment, either the old one or the new one. One process at a time may save to a path: a second one
    gets a BlockingIOError and changes nothing. A full disk raises OSError with what to do, and leaves the checkpoints as
    they were. Where `path` is a link, the file that it leads to is replaced, and its permissions stay. Instead of a path
    you can give a file that is open for writing: it gets the same bytes, but without this protection. The learning-rate
    schedule is a function of the step and is not saved, nor are generators of your own, except those inside `data`.
    """
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
    if not isinstance(path, str | os.PathLike):
        torch.save(content, path)
        return None
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file in it, such as {path / 'checkpoint.pt'}.")
    with replacing(path, ".saving", flush=True) as beside:
        save_beside(content, beside, path)
        keep_older(followed(path), keep=keep)
    return path


def load_checkpoint(
    path: str | os.PathLike[str] | BinaryIO, *, model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None, data: Any = None, policy: Any = None, restore_rng: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Load a checkpoint (a path or an open file) into the given objects and return {"step", "extra"}: all or nothing.

    Loading runs no code: only tensors and plain values are unpickled, and anything else is refused. The checksums of the
    file are checked first, then all keys, shapes and dtypes; the CheckpointError lists what differs. If one part refuses
    its state (a generator, an optimizer's hyper-parameters, or a module's extra state, for which the model's tensors are
    held twice), every other part is left as it was, too.
    `restore_rng=False` leaves Python's, NumPy's and torch's global generators alone, as evaluation should. Tensors
    are read to the CPU and copied to the devices of the objects.
    """
    boolean("restore_rng", restore_rng)
    name = str(path) if isinstance(path, str | os.PathLike) else "the file"
    with open(path, "rb") if isinstance(path, str | os.PathLike) else io.BytesIO(path.read()) as file:
        content = _read(file, name)
    # The model comes last: it can refuse only if a module has extra state, and only then are its tensors held twice.
    parts = {"data": data, "policy": policy, "optimizer": optimizer, "model": model}
    given = {name: part for name, part in parts.items() if part is not None}
    problems = [f"it holds no {part} state" for part in given if content[part] is None]
    if isinstance(content["step"], bool) or not isinstance(content["step"], int) or content["step"] < 0:
        problems.append(f"its step is {content['step']!r}, which is not a count")
    if model is not None and content["model"] is not None:
        problems += _model_differences(model.state_dict(), content["model"])
    if optimizer is not None and content["optimizer"] is not None:
        problems += optimizer_state.differences(optimizer, content["optimizer"], content["optimizer_class"])
    if problems:
        raise CheckpointError(f"{name} does not fit, and nothing was loaded:\n- " + "\n- ".join(problems))
    undo: list[Callable[[], object]] = []
    random_before, loading = rng_state(), "rng"
    try:
        if restore_rng:
            set_rng_state(content["rng"])
        for loading, part in given.items():
            undo.append(_undo(loading, part))
            part.load_state_dict(content[loading])
    except Exception as error:
        set_rng_state(random_before)
        for put_back in reversed(undo):
            put_back()
        sentence = f"{name} does not fit, and nothing was loaded: its {loading} state was refused: {error}"
        raise CheckpointError(sentence) from error
    return {"step": content["step"], "extra": content["extra"]}


def _undo(kind: str, part: Any) -> Callable[[], object]:
    """A function that restores the present state of a part."""
    state = part.state_dict()
    if kind == "optimizer":  # loading replaces its tensors and does not overwrite them
        return lambda: part.load_state_dict(state)
    if kind != "model":
        small = copy.deepcopy(state)
        return lambda: part.load_state_dict(small)
    extra = {name: copy.deepcopy(value) for name, value in state.items() if name.rpartition(".")[2] == "_extra_state"}
    if not extra:  # only tensors, whose shapes and dtypes were compared, and which are too large to be held twice
        return lambda: None
    tensors = {name: value.to("cpu", copy=True) for name, value in state.items() if name not in extra}

    def put_back() -> None:
        part.load_state_dict(tensors, strict=False)
        with contextlib.suppress(Exception):  # raised by a module that accepts no state at all
            part.load_state_dict(extra, strict=False)

    return put_back


def _refuse_unreadable(value: Any, where: str) -> None:
    """Refuse before writing what loading would refuse, such as NumPy's numbers, which are a subclass of float."""
    if type(value) in (dict, OrderedDict):
        for key, part in value.items():
            _refuse_unreadable(key, where)
            _refuse_unreadable(part, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            _refuse_unreadable(part, f"{where}[{index}]")
    elif type(value) not in (*PLAIN, torch.Tensor, nn.Parameter):
        raise CheckpointError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which could not be read back: a "
            "checkpoint holds tensors, numbers, strings, lists and dicts. Convert it first, for example with float()."
        )
    elif isinstance(value, torch.Tensor) and value.is_meta:
        raise CheckpointError(f"{where} is on the meta device, which holds no values that could be saved.")


def _read(file: BinaryIO, name: str) -> dict[str, Any]:
    start = file.read(2)
    try:
        if not zipfile.is_zipfile(file):
            if start.startswith(pickle.PROTO):
                raise CheckpointError(f"{name} was refused: it is a bare pickle, which runs code when it is read.")
            raise CheckpointError(f"{name} is truncated or not a checkpoint: it has no zip directory at its end.")
        _check_entries(file, name)
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name} was refused: it holds something other than tensors and plain values, which could run code when "
            "it is read. Get the checkpoint from its source again, or load nothing from there."
        ) from error
    except Exception as error:  # zipfile and torch raise a dozen kinds of errors for a malformed directory
        raise CheckpointError(f"{name} is damaged: {str(error).partition(chr(10))[0]}") from error
    found = content.get("format") if isinstance(content, dict) else None
    family, _, number = FORMAT.rpartition(" ")
    if found != FORMAT and isinstance(found, str) and found.startswith(family + " "):
        raise CheckpointError(
            f"{name} has format {found!r}, this kit reads {family} {number}: it was written by another version of "
            "cs336kit. Update the kit, or load it with the version that wrote it."
        )
    if found != FORMAT:
        raise CheckpointError(f"{name} is not a checkpoint of save_checkpoint: its format is not {FORMAT!r}.")
    if missing := PARTS - content.keys():
        raise CheckpointError(f"{name} is not a complete checkpoint: it lacks {', '.join(sorted(missing))}.")
    return content


def _check_entries(file: BinaryIO, name: str) -> None:
    """Check every checksum, which torch.load does not, and refuse entries that torch would read differently than zipfile."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            # torch.save stores plain files; torch.load reads an entry that is marked as a folder as empty.
            plain = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
            if not plain or entry.flag_bits & 0x1 or entry.external_attr & 0x10 or entry.is_dir():
                raise CheckpointError(f"{name} is damaged: its part {entry.filename} is not marked as a plain file.")
        broken = archive.testzip()
    if broken is not None:
        raise CheckpointError(f"{name} is damaged: the checksum of its part {broken} is wrong. Take an older one.")


def _model_differences(expected: dict[str, Any], found: Any) -> list[str]:
    if not isinstance(found, dict):
        return [f"its model state is a {type(found).__name__}, not a dict"]
    problems = [f"{name} is missing in the file" for name in expected if name not in found]
    problems += [f"{name} is in the file and not in the model" for name in found if name not in expected]
    if any(isinstance(mine, torch.Tensor) and mine.is_meta for mine in expected.values()):
        problems.append("the model is on the meta device, which holds no values: call its to_empty(device=…) first")
    first: dict[tuple[Any, ...], str] = {}  # the first name of each tensor; a tied head has two
    for name in sorted(expected.keys() & found.keys()):
        mine, theirs = expected[name], found[name]
        if not isinstance(mine, torch.Tensor):
            continue
        if not isinstance(theirs, torch.Tensor):
            problems.append(f"{name} is not a tensor in the file")
        elif mine.shape != theirs.shape:
            shapes = f"{tuple(theirs.shape)} in the file and {tuple(mine.shape)} in the model"
            problems.append(f"{name} has shape {shapes}")
        elif mine.dtype != theirs.dtype:
            problems.append(f"{name} is {theirs.dtype} in the file and {mine.dtype} in the model")
        elif theirs.is_meta or theirs.layout != mine.layout:  # a failed copy would leave half a model
            problems.append(
                f"{name} is {theirs.layout} on {theirs.device} in the file, and cannot be copied into the model"
            )
        elif theirs.layout is torch.strided and mine.numel() and not mine.is_meta:
            other = first.setdefault((mine.device, mine.data_ptr(), mine.shape, mine.stride()), name)
            if other != name and not torch.equal(theirs, found[other]):
                problems.append(f"{other} and {name} are one tensor in the model, and differ in the file")
    return sorted(problems)
