"""The content of lessons, found by name when it is asked for: `teach` is the machinery, and knows no lesson by itself."""

import pkgutil
import re
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

_LESSONS = "cs336kit.lessons"


@cache
def numbers() -> tuple[str, ...]:
    """The numbers of the lessons that have content, such as "07", in order."""
    names = (found.name for found in pkgutil.iter_modules(import_module(_LESSONS).__path__))
    return tuple(sorted(match[1] for name in names if (match := re.fullmatch(r"lesson_(\d\d)", name))))


@cache
def module(number: str, what: str) -> ModuleType:
    """The `exercises` or the `figures` of one lesson."""
    return import_module(f"{_LESSONS}.lesson_{number}.{what}")


def modules(what: str) -> dict[str, ModuleType]:
    """Number → the `exercises` or the `figures` of every lesson."""
    return {number: module(number, what) for number in numbers()}


def named(where: str) -> Any:
    """What several lessons show, such as "claims:claims": a name of a module of `cs336kit.lessons`."""
    return pkgutil.resolve_name(f"{_LESSONS}.{where}")
