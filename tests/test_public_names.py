"""The kit's public names with their arguments and defaults, as they stand in public_names.txt.

Whoever changes a name, an argument or a default changes what others have written: it is seen here, and is meant.
To renew the file: ``python tests/test_public_names.py``.
"""

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cs336kit
from cs336course.site.names import ROOMS, by_module

FILE = Path(__file__).with_name("public_names.txt")
#: Dataclasses that collect something while they live, and the parts of a program, which are made by the hundred.
CHANGING = {"lm.training.History", "measure._trace.Frame"} | {
    f"predict.engine.operations.{name}"
    for name in ("EndOfCache", "Free", "Gradient", "Hold", "Leaf", "Mark", "Op", "Repeat")
}


def lines(room_name: str) -> Iterator[str]:
    """A line for each public name of a room, and under a class for each of its public attributes."""
    room = importlib.import_module(ROOMS[room_name])
    names = [name for found in by_module(room).values() for name in found]
    # What a room takes over from another one is described there.
    yield from (line for name in sorted({*names}) for line in described(f"{room_name}.{name}", getattr(room, name)))


def described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"{name}{arguments(value)}"
        ours = [one for one in reversed(value.__mro__) if one.__module__.startswith("cs336")]
        for attribute, inner in sorted({name: what for one in ours for name, what in vars(one).items()}.items()):
            inner = getattr(inner, "__func__", inner)
            function = inner.fget if isinstance(inner, property) else inner
            # Its own: torch gives a class of optimizers the step of its base, once there is one of them.
            own = getattr(function, "__qualname__", "") in {f"{one.__qualname__}.{attribute}" for one in ours}
            if own and not attribute.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
                yield from (f"    {line}" for line in described(f".{attribute}", inner))
    elif callable(value):
        yield f"{name}{arguments(value)}"
    elif isinstance(value, property):
        yield f"{name} (property)"
    else:
        yield f"{name} = {shown(value)}"


def arguments(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default if parameter.default is parameter.empty else Shown(shown(parameter.default)),
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class Shown(str):
    """A default, as it is to be written."""

    def __repr__(self) -> str:
        return str(self)


def shown(value: Any) -> str:
    """A value in one line that says the same on every machine."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, frozenset | set):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(shown, value)) + ")"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__)).replace("_HAS_DEFAULT_FACTORY_CLASS", "...")


@pytest.mark.parametrize("room", ROOMS)
def test_names_arguments_and_defaults_are_those_of_the_file(room):
    stored = [
        line
        for block in FILE.read_text(encoding="utf-8").split(f"\n{'=' * 8} ")
        if block.startswith(f"{room}\n")
        for line in block.splitlines()[1:]
    ]
    changes = [*difflib.unified_diff(stored, [*lines(room)], "public_names.txt", "the kit", lineterm="", n=0)]
    meant = "if the change is meant, write the file anew: python tests/test_public_names.py"
    assert not changes, "\n".join([meant, *changes])


@pytest.mark.parametrize("room", sorted({*ROOMS} - {"teach.figures"}))
def test_help_and_completion_show_a_rooms_names_and_nothing_else(room):
    package = importlib.import_module(ROOMS[room])
    assert dir(package) == sorted(package.__all__)
    described = pydoc.plain(pydoc.render_doc(package))
    assert [name for name in dir(package) if not re.search(rf"^    (class )?{name}\b", described, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ["cs336kit", "cs336plan", "cs336course"])
def test_a_dataclass_stays_as_it_was_made(name):
    package = importlib.import_module(name)
    changing = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith(".__main__"):  # runs the command
            continue
        for value in [*vars(importlib.import_module(module.name)).values()]:
            mine = inspect.isclass(value) and dataclasses.is_dataclass(value) and value.__module__ == module.name
            if mine and not value.__dataclass_params__.frozen:
                changing.add(f"{module.name.removeprefix('cs336kit.')}.{value.__qualname__}")
    assert changing == (CHANGING if name == "cs336kit" else set())


if __name__ == "__main__":
    blocks = (f"\n{'=' * 8} {room}\n" + "\n".join(lines(room)) for room in ROOMS)
    FILE.write_text(f"Public names of cs336kit {cs336kit.__version__}\n" + "\n".join(blocks) + "\n", encoding="utf-8")
