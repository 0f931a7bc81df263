"""What every instrument checks first: the device, and whether the function can be run."""

import inspect
from collections.abc import Callable

import torch


def device(name: str | torch.device | None = None) -> torch.device:
    """The device to use: the current CUDA GPU if there is one, else the CPU; given a name, exactly that device or an error.

    `name`: "cpu", "cuda" (the current one), "cuda:1", "meta" or a torch.device. Nothing is moved and nothing is initialized.
    Raises ValueError for a name that torch does not know, or of a device that the instruments cannot measure ("mps"), and
    RuntimeError for a device that this machine lacks.
    """
    if name is None:
        return torch.device("cuda", _current()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        wanted = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"{name!r} is not a device: write 'cpu', 'cuda', 'cuda:1' or 'meta'.") from None
    if wanted.type in ("cpu", "meta"):
        return wanted
    if wanted.type == "mps":
        raise ValueError(
            f"{str(wanted)!r} is not a device of this course, because its instruments read CUDA's clock and allocator, and know "
            "no peak of a Mac's GPU. Use measure.device(): every lesson runs on a Mac's CPU."
        )
    if wanted.type != "cuda":
        raise ValueError(f"{name!r} is not a device of this course: write 'cpu', 'cuda', 'cuda:1' or 'meta'.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise RuntimeError(f"{str(wanted)!r} was asked for, but this machine has no CUDA device: use measure.device().")
    index = _current() if wanted.index is None else wanted.index
    if index >= count:
        known = ", ".join(f"'cuda:{i}'" for i in range(count))
        raise RuntimeError(f"{str(wanted)!r} was asked for, but this machine has only {known}.")
    return torch.device("cuda", index)


def _current() -> int:
    """The number of the current GPU, without initializing any; before initialization it is the first one."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def device_name(where: torch.device | None = None) -> str:
    """The name that the driver gives the device ("NVIDIA H100 80GB HBM3"), or "cpu"."""
    where = device(where)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


def runnable(instrument: str, function: object) -> Callable[[], object]:
    """Return `function` if it can be called without arguments; otherwise raise TypeError with what to write instead."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(
            f"{instrument} runs a function, such as lambda: x @ w, but got a {kind}: put 'lambda:' before it."
        )
    try:
        # The signature of a module accepts anything; that of its forward says what it needs.
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # some built-in functions have none
        return function
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{instrument} calls the function without arguments, but {name}{signature} needs some: "
            f"write lambda: {name if name != '<lambda>' else 'f'}(…)."
        ) from None
    return function
