"""Figures in one style: deterministic SVG, readable in grayscale and when projected, and always with alt text.

There is a short function for each figure, in the folder of its lesson (`cs336kit/lessons/lesson_NN/figures.py`), drawn with the
primitives here: bars, lines, number lines, cells of memory, a graph, a timeline. The alt text of each says what it drew.
A lesson calls every figure as `teach.figures.<name>`.
"""

from collections.abc import Callable
from functools import cache

from cs336kit.teach.content import modules
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

#: Of the style that all of them share.
_STYLE = {"COLORS": COLORS, "HATCHES": HATCHES, "Figure": Figure, "axes": axes, "show": show}


@cache
def of_lessons() -> dict[str, Callable[..., Figure]]:
    """Name → figure, of all lessons."""
    return {
        name: value
        for module in modules("figures").values()
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_") and callable(value)
    }


def __getattr__(name: str) -> Callable[..., Figure]:
    if name.startswith("_") or name not in of_lessons():
        raise AttributeError(f"there is no figure {name!r}; there are {', '.join(sorted(of_lessons()))}")
    return of_lessons()[name]


def __dir__() -> list[str]:
    return sorted([*_STYLE, *of_lessons()])
