"""Check an answer against a reference, stop at the first counterexample, and name the mistake behind it.

A lesson's exercises stand in ``exercises/lesson_NN.py``, or in a package of that name with a module for each exercise, as
``EXERCISES = (Exercise(...), ...)``::

    def largest(exponent_bits, fraction_bits, ieee): ...          # the right answer
    def reserved_too_much(exponent_bits, fraction_bits, ieee): ... # how people get it wrong

    Exercise(
        id="01.4",
        reference=largest,
        cases=lambda: [Case(args=(5, 10, True), label="fp16"), Case(args=(4, 3, False), label="E4M3")],
        mistakes=(Mistake(reserved_too_much, "For {case} you returned {given}: you reserved the whole top exponent."),),
        hints=("a nudge", "the method", "almost there"),
        checked="fp16, bf16, E5M2 and 20 random formats",
    )

The reference may also be a plain value (then there are no cases, and each mistake is a wrong value). A mistake is recognised
by behaviour: the answer returned what that wrong answer returns. Its message may use {case}, {given} and {expected}.
"""

import copy
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from cs336kit.teach.exercises.calling import Failed, call, shorten
from cs336kit.teach.exercises.equality import difference


@dataclass(frozen=True)
class Case:
    """One call to try: positional and keyword arguments (copied for every call), and how messages name it."""

    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def name(self, function: str) -> str:
        """The label, or the call itself as text."""
        parts = [shorten(value) for value in self.args] + [f"{k}={shorten(v)}" for k, v in self.kwargs.items()]
        return self.label or f"{function}({', '.join(parts)})"


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer (a function, or a value) and the sentence that names what went wrong."""

    answer: Any
    message: str


@dataclass(frozen=True)
class Exercise:
    """What is asked, what is right, and how people go wrong.

    observe: what of a call is compared, ``observe(result, args)``; by default the result itself. Use it where a side
    effect or a storage matters. tolerance: relative, for floats and tensors; 0 asks for equality.
    """

    id: str
    reference: Any
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, str, str]
    checked: str
    cases: Callable[[], Iterable[Case]] = lambda: (Case(),)
    observe: Callable[[Any, tuple], Any] = lambda result, args: result
    tolerance: float = 1e-9

    @property
    def is_function(self) -> bool:
        """Whether the answer is a function (and not a plain value)."""
        return callable(self.reference) and not isinstance(self.reference, type)


@dataclass(frozen=True, repr=False)
class Result:
    """What a check found; true when the answer passed."""

    id: str
    state: str
    message: str

    @property
    def passed(self) -> bool:
        """Whether every case came out right."""
        return self.state == "passed"

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{self.id} {self.state}: {self.message}"

    def _repr_html_(self) -> str:
        color = {"passed": "#009E73", "waiting": "#888888"}.get(self.state, "#D55E00")
        return (
            f'<div style="border-left:6px solid {color};padding:0.4em 0.9em;white-space:pre-wrap;">'
            f"<b>{escape(self.id)} {escape(self.state)}:</b> {escape(self.message)}</div>"
        )


@cache
def load(id: str) -> Exercise:
    """The exercise with this id, such as ``01.4``; an unknown id raises ValueError and lists the known ones."""
    match = re.fullmatch(r"(\d\d)\.(\d+)", id) if isinstance(id, str) else None
    if match and f"lesson_{match[1]}" in _modules():
        module = importlib.import_module(f"cs336kit.teach.exercises.lesson_{match[1]}")
        for exercise in module.EXERCISES:
            if exercise.id == id:
                return exercise
        known = ", ".join(exercise.id for exercise in module.EXERCISES)
        raise ValueError(f"lesson {match[1]} has no exercise {id!r}; it has {known}")
    lessons = ", ".join(name.removeprefix("lesson_") for name in _modules())
    raise ValueError(
        f"no exercise {id!r}: an id is lesson.number, as in '01.4', and the lessons with exercises are {lessons}"
    )


def known_ids() -> tuple[str, ...]:
    """The ids of all exercises of the course, in order."""
    modules = [importlib.import_module(f"cs336kit.teach.exercises.{name}") for name in _modules()]
    return tuple(exercise.id for module in modules for exercise in module.EXERCISES)


def _modules() -> list[str]:
    here = [str(Path(__file__).parent)]
    return sorted(m.name for m in pkgutil.iter_modules(here) if m.name.startswith("lesson_"))


def check(id: str, answer) -> Result:
    """Try `answer` on every case of the exercise and say what was found; never raises for a wrong answer."""
    exercise = load(id)
    if answer is ...:
        return Result(id, "waiting", _WAITING.format(id=id))
    if not exercise.is_function:
        return _judge(exercise, Case(label="this"), answer)
    if not callable(answer):
        return Result(
            id, "not yet", f"pass the function itself, not {shorten(answer)} (no parentheses after its name)."
        )
    for case in exercise.cases():
        try:
            given = _observed(exercise, answer, case)
        except Failed as failure:
            return Result(id, "not yet", f"{case.name(_name(answer))} {failure}")
        if given is ...:
            return Result(id, "waiting", _WAITING.format(id=id))
        result = _judge(exercise, case, given, answer)
        if not result:
            return result
    return Result(id, "passed", exercise.checked)


_WAITING = "replace the ... with your answer and run this cell again; teach.exercises.hint({id!r}) helps, three times."


def _observed(exercise: Exercise, function, case: Case):
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    result = call(function, args, kwargs)
    if result is ...:
        return result
    try:
        return call(exercise.observe, (result, args), {})
    except Failed:
        raise Failed(f"returned {shorten(result)}, which is not the kind of answer that is asked for.") from None


def _judge(exercise: Exercise, case: Case, given, answer=None) -> Result:
    expected = _observed(exercise, exercise.reference, case) if exercise.is_function else exercise.reference
    wrong = difference(given, expected, exercise.tolerance)
    if wrong is None:
        return Result(exercise.id, "passed", exercise.checked)
    name = case.name(_name(answer))
    mistake = _recognise(exercise, case, given, answer)
    if mistake:
        fields = {"{case}": name, "{given}": shorten(given), "{expected}": shorten(expected)}
        message = re.sub(r"\{(case|given|expected)\}", lambda m: fields[m[0]], mistake.message)
    elif exercise.is_function:
        message = f"for {name} {wrong}."
    else:
        message = f"{wrong}."
    return Result(exercise.id, "not yet", message)


def _recognise(exercise: Exercise, case: Case, given, answer) -> Mistake | None:
    """The mistake that gives the same wrong value here; where several do, the one that agrees most often elsewhere."""
    alike = [m for m in exercise.mistakes if _agrees(exercise, m, case, given)]
    if len(alike) < 2 or answer is None:
        return alike[0] if alike else None
    score = dict.fromkeys(range(len(alike)), 0)
    for other in exercise.cases():
        try:
            value = _observed(exercise, answer, other)
        except Failed:
            continue
        for i, mistake in enumerate(alike):
            score[i] += _agrees(exercise, mistake, other, value)
    return alike[max(score, key=score.get)]


def _agrees(exercise: Exercise, mistake: Mistake, case: Case, given) -> bool:
    try:
        value = _observed(exercise, mistake.answer, case) if exercise.is_function else mistake.answer
    except Failed:
        return False
    return difference(given, value, exercise.tolerance) is None


def _name(answer) -> str:
    name = getattr(answer, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else "your function"


@dataclass(frozen=True, repr=False)
class Hint:
    """One step of an exercise's ladder of three."""

    id: str
    level: int
    text: str

    def __repr__(self) -> str:
        return f"{self.id} hint {self.level} of 3: {self.text}"


_asked: dict[str, int] = {}


def hint(id: str, level: int | None = None) -> Hint:
    """The next hint of an exercise: a nudge, then the method, then almost the answer; `level` 1 to 3 asks for one of them."""
    exercise = load(id)
    if level is None:
        level = _asked[id] = min(_asked.get(id, 0) + 1, 3)
    if isinstance(level, bool) or level not in (1, 2, 3):
        raise ValueError(f"level={level!r}: there are hints 1 (a nudge), 2 (the method) and 3 (almost there)")
    return Hint(id, level, exercise.hints[level - 1])
