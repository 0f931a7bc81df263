"""Check an answer against the reference: stop at the first case that it fails, and name the mistake behind it."""

import copy
import dis
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from cs336kit import journal as _journal
from cs336kit.teach.exercises.call import Failed, attempt, keeper
from cs336kit.teach.exercises.confined import Say
from cs336kit.teach.exercises.core import NOTHING, Exercise, load, paragraph
from cs336kit.teach.exercises.judging import difference, plain, shorten
from cs336kit.teach.exercises.sandbox import Work, run


@dataclass(frozen=True, repr=False)
class Result:
    """The verdict of a check on somebody's answer; true when the answer passed."""

    id: str
    state: str
    message: str
    whose: str = "your answer"

    @property
    def passed(self) -> bool:
        """Whether every case was right."""
        return self.state == "passed"

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{self._verdict}: {self.message}"

    @property
    def _verdict(self) -> str:
        whose = "" if self.state == "waiting" or self.whose == Result.whose else f", {self.whose},"
        return f"{self.id}{whose} {self.state}"

    def _repr_html_(self) -> str:
        # Only the reader's own success is green.
        color = {"passed": "#008866" if self.whose == Result.whose else "#777777", "waiting": "#777777"}
        return paragraph(self._verdict, self.message, color.get(self.state, "#D55E00"))


def check(id: str, answer: Any) -> Result:
    """Try `answer` on every case of the exercise and report what was found; never raises for a wrong answer.

    The answer runs in a process of its own: see :mod:`cs336kit.teach.exercises.sandbox`. If it passes, the reader's journal
    notes that.
    """
    result = _tried(id, answer)
    problem = _journal.note("That you solved it", solved=id)[1] if result else ""
    return replace(result, message=f"{result.message} {problem}".strip())


def check_solution(id: str, solution: Any) -> Result:
    """Try the course's own answer, for a folded solution: the verdict says whose answer it is."""
    return replace(_tried(id, solution), whose="the course's answer")


def _tried(id: str, answer: Any) -> Result:
    found = load(id)
    if found.decision and not callable(answer):
        return Result(id, *decide(found, answer))
    return Result(id, *tried(found, answer, judge))


def tried(found: Exercise, answer: Any, work: Callable[[Exercise, list, Callable, Say], None]) -> tuple[str, str]:
    """The last that ``work(found, trials, answer, say)`` says; it is called only if the answer is a function and allowed."""
    if answer is ...:
        return "waiting", _waiting(found)
    if not callable(answer):
        return run(_no_function, answer)
    function = type(answer) is FunctionType
    own = "the task asks for an answer of your own, "
    if found.avoid and not function:
        return "not yet", own + "as a function that you write with def."
    if used := {*found.avoid} and _names(answer) & {*found.avoid}:
        return "not yet", f"{own}without {' and '.join(sorted(used))}."
    name = answer.__name__ if function and answer.__name__.isidentifier() else "your function"
    return run(partial(_with_trials, found, name, work), answer)


def _no_function() -> Work:
    text = "pass the function itself, not {} (no parentheses after its name)."
    return lambda answer, say: say("not yet", text.format(shorten(answer)))


def _with_trials(found: Exercise, name: str, work: Callable[[Exercise, list, Callable, Say], None]) -> Work:
    cases = trials(found, name)
    return lambda answer, say: work(found, cases, answer, say)


def decide(found: Exercise, answer: Any) -> tuple[str, str]:
    """The state and the message for a decision: a value, compared with the right one and with each mistake."""
    if any(part is ... for part in (answer if isinstance(answer, tuple) else (answer,))):
        return "waiting", _waiting(found)
    right = lower(found.reference())
    try:
        given = lower(answer)
    except RecursionError:
        return "not yet", "your answer has itself inside, or is nested too deeply. It is a value, or a tuple of values."
    if difference(given, right, found.tolerance) is None:
        return "passed", found.checked
    for wrong, sentence in zip(found.wrong(()), found.mistakes.values(), strict=True):
        if _meant(given, lower(wrong), found.tolerance):
            return "not yet", f"You answered {shorten(answer)}: {sentence}"
    return "not yet", _undecided(answer, found.reference(), found.tolerance, found.labels)


def lower(answer: Any) -> Any:
    """The answer with its words in lower case and hyphens for spaces: "c" is as good a choice as "C"."""
    if isinstance(answer, (tuple, list)):
        return tuple(map(lower, answer))
    if isinstance(answer, set):
        return set(map(lower, answer))
    return re.sub(r"[\s_]+", "-", answer.strip().lower()) if isinstance(answer, str) else answer


def paired(answer: Any, right: Any) -> list[tuple] | None:
    """The parts of an answer, each beside its part of the right one; None if there are not as many."""
    if not isinstance(right, tuple):
        return [(answer, right)]
    if not isinstance(answer, (tuple, list)) or len(answer) != len(right):
        return None
    return list(zip(answer, right, strict=True))


def _undecided(answer: Any, right: Any, tolerance: float, labels: tuple[int, ...]) -> str:
    """Which part of a decision is not right, and in which direction, without giving it away."""
    parts = paired(answer, right)
    if parts is None:
        return f"the answer is one tuple of {len(right)} values; you gave {shorten(answer)}."
    same = [difference(lower(given), lower(wanted), tolerance) is None for given, wanted in parts]
    place = same.index(False)
    given, wanted = parts[place]
    part = (f"part {place + 1} of your answer" if len(parts) > 1 else "your answer") + f", {shorten(given)},"
    if isinstance(wanted, str):
        # A word of the reader's own may mean the right one: what counts are the words of the task.
        not_right = "not the right choice, or not one of the words that the task gives"
        return f"{part} is {not_right if isinstance(given, str) else 'not a word'}."
    number = plain(given)
    if place in labels and isinstance(number, (int, float)):
        return f"{part} is not the right choice."
    if all(isinstance(x, (int, float)) and not isinstance(x, bool) and x == x for x in (number, wanted)):
        return f"{part} is too {'high' if number > wanted else 'low'}."
    return f"{part} is not a number."


def _meant(answer: Any, wrong: Any, tolerance: float) -> bool:
    """Whether an answer is this wrong one; an ``...`` in the wrong one stands for anything, a set for any of its words."""
    parts = paired(answer, wrong)
    return parts is not None and all(
        w is ... or (isinstance(a, str) and a in w if isinstance(w, set) else difference(a, w, tolerance) is None)
        for a, w in parts
    )


def trials(found: Exercise, name: str) -> list[tuple[str, tuple, Any, list]]:
    """For each case its label, a copy of its arguments, and what the reference and the mistakes return.

    Everything that an answer is compared with is computed here, before the answer runs.
    """
    calls = found.calls(name)
    return [(label, copy.deepcopy(args), found.right(args), found.wrong(args)) for label, args in calls]


def _waiting(found: Exercise) -> str:
    times = {1: "once", 2: "twice", 3: "three times"}[len(found.hints)]
    return (
        f"replace the ... with your answer and run this cell again; teach.exercises.hint({found.id!r}) helps, {times}."
    )


def _names(function: FunctionType) -> set[str]:
    """All names that a function uses, also in the functions inside it and in those of its notebook that it calls."""
    names: set[str] = set()
    place, codes, seen = function.__globals__, [function.__code__], set()
    while codes:
        if (code := codes.pop()) in seen:
            continue
        seen.add(code)
        called = [place.get(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
        # What was imported or set under a different name is also found by its own.
        names |= {*code.co_names, *(getattr(value, "__name__", "") for value in called)}
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        codes += [value.__code__ for value in called if type(value) is FunctionType and value.__globals__ is place]
    return names


def judge(found: Exercise, trials: list, answer: Callable, say: Say) -> None:
    """Run the answer on one case after another and report what is found; the last report is the verdict."""
    given: list = []
    # What is called after the answer has run is in locals, where it cannot reach it; restore() puts back the rest.
    differ, show, tolerance, observe, restore = difference, shorten, found.tolerance, found.observe, keeper()
    for label, args, expected, _ in trials:
        say("running", label)
        try:
            result = attempt(answer, args, restore)
            if result is ...:
                return say("waiting", _waiting(found))
            try:
                given.append(attempt(observe, (result, args), restore) if observe else result)
            except Failed:
                raise Failed(f"returned {show(result)}, which is not the kind of answer that is asked for.") from None
        except Failed as failure:
            return say("not yet", f"{label} {failure}")
        text = differ(given[-1], expected, tolerance)
        if text is not None:
            break
    else:
        return say("passed", found.checked)
    if result is None and not observe and all(right is not None for _, _, right, _ in trials):
        text = "your function returned nothing (is there a return?)"
    unknown = f"for {label}{' ' if text.startswith('you') else ', '}{text}."
    # Without a result, an answer is judged by what it did.
    named = f"For {label}: " if result is None and observe else f"For {label} you returned {show(result)}: "
    sentences = dict(enumerate(found.mistakes.values()))
    # A mistake explains every case so far, those that passed among them.
    so_far = [(value, wrong) for value, (*_, wrong) in zip(given, trials, strict=False)]
    alike = [i for i in sentences if all(differ(value, wrong[i], tolerance) is None for value, wrong in so_far)]
    say("not yet", named + sentences[alike[0]] if alike else unknown)
    if not alike:
        return None
    # Several mistakes may return the same here, and one by accident: the real one agrees in most other cases, too.
    for _, args, *_ in trials[len(given) :]:
        try:
            given.append(attempt(lambda *args: found.observed(answer(*args), args), args, restore))
        except Failed:
            given.append(NOTHING)
    pairs = [(value, wrong) for value, (*_, wrong) in zip(given, trials, strict=True)]
    score = {i: sum(differ(value, wrong[i], tolerance) is None for value, wrong in pairs) for i in alike}
    best = max(score, key=score.__getitem__)
    say("not yet", named + sentences[best] if 2 * score[best] >= len(trials) else unknown)
