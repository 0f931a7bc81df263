"""What an exercise is: its right answer, its cases, the mistakes that readers make, and the hints.

The exercises of a lesson stand in ``cs336kit/lessons/lesson_NN/exercises.py``, each above its right answer::

    @exercise(
        "99.1",
        cases={"a square": (2, 2), "a page": (21, 29.7)},
        mistakes={
            "width + height": "you added where you should multiply.",
            "right_if(height=width)": "you squared the width.",
            _by_counting: "you counted the squares that fit.",
        },
        hints=("a nudge", "the method"),
        checked="a square and a page.",
    )
    def area(width, height):
        return width * height

A decision has a reference without parameters, and the answer is a value: a word, a number, or a tuple of them. Its mistakes
are values, too, and an ``...`` in a tuple stands for anything: ``"('A', ...)": "A's gradient still travels all the way."`` A set
stands for any of its words.

A mistake is recognized by what it returns. It is a function, or an expression of the arguments by name, of `right` (what
the reference returns) and of `right_if(name=value)` (what the reference would return for different arguments). A reference may
have arguments for this alone: behind a ``*`` and with a default, since an answer does not get them. The message begins with
"For <case> you returned <value>: ", and the sentence continues from there.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from cs336kit.teach.content import module, modules, numbers
from cs336kit.teach.exercises.judging import shorten

#: Arguments by label, or without labels: then the call itself is the label.
Cases = Mapping[str, tuple] | Iterable[tuple]

#: Stands for the result of a wrong answer that raises.
NOTHING = object()


@dataclass(frozen=True)
class Exercise:
    """An exercise: its right answer, its cases, and the mistakes that readers make.

    observe: ``observe(result, args)`` is compared, instead of the result itself; the keys of a dict are what its parts are
    called in a message. tolerance: relative, for floats and tensors; 0 asks for equality, and for an int where one is right.
    avoid: names that the answer, and the reader's own functions that it calls, must not use; the answer must then be a
    function written with ``def``. labels: places in a decision's tuple whose numbers name something, such as a sentence of a
    list; they are not too high or too low.
    """

    id: str
    reference: Callable
    mistakes: Mapping[str | Callable, str]
    hints: tuple[str, ...]
    checked: str
    cases: Cases | Callable[[], Cases] = ((),)
    observe: Callable[[Any, tuple], Any] | None = None
    tolerance: float = 1e-9
    avoid: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In another process, an exercise of the course is loaded anew: what its arguments share would not come along."""
        known = _known.get(self.id) is self and self.reference.__module__.startswith("cs336kit.lessons.")
        return (load, (self.id,)) if known else super().__reduce_ex__(protocol)

    def calls(self, name: str) -> list[tuple[str, tuple]]:
        """Label and arguments of every case; `name` is the function's in a label that is a call."""
        cases = self.cases() if callable(self.cases) else self.cases
        if isinstance(cases, Mapping):
            return list(cases.items())
        return [(f"{name}({', '.join(map(shorten, args))})", args) for args in cases]

    @property
    def decision(self) -> bool:
        """Whether the answer is a value instead of a function."""
        return not inspect.signature(self.reference).parameters

    def observed(self, result: Any, args: tuple) -> Any:
        """The part of a call's result that is compared."""
        return result if self.observe is None else self.observe(result, args)

    def right(self, args: tuple) -> Any:
        """What the reference returns, on a copy of the arguments, as it is compared."""
        args = copy.deepcopy(args)
        return self.observed(self.reference(*args), args)

    def wrong(self, args: tuple) -> list:
        """What each mistake returns, in order, as it is compared; NOTHING for one that raises."""
        return [self._value(answer, copy.deepcopy(args)) for answer in self.wrong_answers.values()]

    @cached_property
    def wrong_answers(self) -> dict[str | Callable, Callable]:
        """Each mistake as a function."""
        return {mistake: mistake if callable(mistake) else self._compiled(mistake) for mistake in self.mistakes}

    def _compiled(self, expression: str) -> Callable:
        code, signature = compile(expression, f"<mistake of {self.id}>", "eval"), inspect.signature(self.reference)

        def wrong(*args: Any) -> Any:
            given = signature.bind(*args)
            given.apply_defaults()
            scope = {**given.arguments, "right_if": lambda **other: self.reference(**{**given.arguments, **other})}
            if "right" in code.co_names:
                scope["right"] = self.reference(*copy.deepcopy(args))
            return eval(code, {**self.reference.__globals__, **scope})

        return wrong

    def _value(self, answer: Callable, args: tuple) -> Any:
        try:
            return self.observed(answer(*args), args)
        except Exception:
            return NOTHING


_known: dict[str, Exercise] = {}


def exercise(id: str, **parts: Any) -> Callable[[Callable], Callable]:
    """Add an exercise to the course, with the function below as the right answer; the parts are fields of Exercise."""

    def add(reference: Callable) -> Callable:
        before = _known[id].reference if id in _known else reference
        if (before.__module__, before.__name__) != (reference.__module__, reference.__name__):
            raise ValueError(f"there is an exercise {id!r} already, with the answer {before.__name__}")
        mistakes = " ".join(mistake for mistake in parts.get("mistakes", ()) if isinstance(mistake, str))
        for name in {"right", "right_if"} & {*inspect.signature(reference).parameters}:
            if re.search(rf"\b{name}\b", mistakes):
                raise ValueError(f"{id}: in a mistake, {name} has another meaning; rename the argument")
        _known[id] = Exercise(id, reference, **parts)
        return reference

    return add


def load(id: str) -> Exercise:
    """The exercise with this id, such as ``01.2``; an unknown id raises ValueError and lists the known ones."""
    if isinstance(id, str) and id in _known:
        return _known[id]
    match = re.fullmatch(r"(\d\d)\.\d+", id) if isinstance(id, str) else None
    if match and match[1] in numbers():
        module(match[1], "exercises")
    if id in _known:
        return _known[id]
    lessons = ", ".join(numbers())
    known = ", ".join(i for i in _known if match and i.startswith(match[1]))
    raise ValueError(
        f"lesson {match[1]} has no exercise {id!r}; it has {known}"
        if match and known
        else f"no exercise {id!r}: an id is lesson.number, as in '01.2', and the lessons with exercises are {lessons}"
    )


def known_ids() -> tuple[str, ...]:
    """The ids of all exercises of the course, in order."""
    lessons = modules("exercises")
    return tuple(sorted(id for id in _known if id[:2] in lessons))


@dataclass(frozen=True, repr=False)
class Hint:
    """One of the hints of an exercise."""

    id: str
    level: int
    of: int
    text: str

    def __repr__(self) -> str:
        return f"{self._which}: {self.text}"

    @property
    def _which(self) -> str:
        return f"{self.id} hint {self.level} of {self.of}"

    def _repr_html_(self) -> str:
        return paragraph(self._which, self.text, "#777777")


def paragraph(title: str, text: str, color: str) -> str:
    """A title and a text with a bar beside them, as HTML: JupyterLab breaks plain text in the middle of a word."""
    return (
        f'<div style="border-left:6px solid {color};padding:0.4em 0.9em;'
        f'white-space:pre-wrap;"><b>{escape(title)}:</b> {escape(text)}</div>'
    )


_asked: dict[str, int] = {}


def hint(id: str, level: int | None = None) -> Hint:
    """The next hint of an exercise: a nudge, then the method, then almost the answer; `level` from 1 asks for one of them."""
    hints = load(id).hints
    if level is None:
        level = _asked[id] = min(_asked.get(id, 0) + 1, len(hints))
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= len(hints):
        raise ValueError(f"level={level!r}: there are hints 1 (a nudge) to {len(hints)} (the most help)")
    return Hint(id, level, len(hints), hints[level - 1])
