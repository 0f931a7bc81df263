"""Points for an answer: ``grade("07.1", timed, of=5)`` stands in the locked cells of a notebook that nbgrader grades.

An answer that passes gets all points. Otherwise, a function gets a share for the cases that it passes, and a decision for
the parts that are right. A function without a body gets nothing, although it may pass a case by accident.
"""

import contextlib
import copy
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from cs336kit.teach.exercises.call import Failed, attempt, keeper
from cs336kit.teach.exercises.checking import Result, decide, judge, lower, paired, tried
from cs336kit.teach.exercises.confined import Say
from cs336kit.teach.exercises.core import Exercise, load
from cs336kit.teach.exercises.judging import difference


def grade(id: str, answer: Any, of: float, *, name: str = "") -> float:
    """Print what the check finds about `answer`, and return its points, from 0 to `of`, for nbgrader.

    `name`: what the notebook calls the answer; with it, an answer of None counts as missing. Never raises for a wrong
    answer; raises ValueError for an unknown exercise.
    """
    # nbgrader treats anything on stderr as a failure.
    with contextlib.redirect_stderr(sys.stdout):
        found = load(id)
        if answer is None and name:
            print(
                f"{id} no answer: nothing here is called {name}. "
                "Run the cell above again; it must end without an error and set that name."
            )
            return 0.0
        if found.decision and not callable(answer):
            result, share, what = Result(id, *decide(found, answer)), _parts(found, answer), "Right parts"
        else:
            state, message = tried(found, answer, _count)
            # Where _count has counted cases, the state is a share such as 2/3.
            share, what = state if "/" in state else f"{int(state == 'passed')}/1", "Cases passed"
            result = Result(id, "not yet" if "/" in state else state, message)
        print(result)
        if not result and Fraction(share):
            print(f"{what}: {share.replace('/', ' of ')}.")
        return round(float(of * Fraction(share)), 2)


def _parts(found: Exercise, answer: Any) -> str:
    """How many parts of a decision are right, such as 2/3; a part that is still ... is not."""
    right = found.reference()
    parts = paired(answer, right)
    if parts is None:
        return f"0/{len(right)}"
    same = [difference(lower(given), lower(wanted), found.tolerance) is None for given, wanted in parts]
    return f"{sum(same)}/{len(same)}"


def _count(found: Exercise, trials: list, answer: Callable, say: Say) -> None:
    """Judge an answer. If it is wrong, report after each case how many it has passed so far.

    An endless loop may end it, also while it is judged: then the cases before count, as for an answer that raises.
    """
    differ, restore, heard = difference, keeper(), ("", "")
    # An answer may change its arguments, so these are copied before it runs.
    cases = [(copy.deepcopy(args), right, _idle(found, copy.deepcopy(args), right)) for _, args, right, _ in trials]
    met: list[tuple] = []
    begun = 0

    def share() -> str:
        return f"{0 if all(idle for *_, idle in met) else len(met)}/{len(cases)}"

    def hear(state: str, message: str) -> None:
        nonlocal heard, met, begun
        heard = state, message
        if state == "running":  # it has passed every case before this one
            met, begun = cases[:begun], begun + 1
            state = f"running {share()}"
        say(state, message)

    judge(found, trials, answer, hear)
    if heard[0] != "not yet":
        return
    met = []
    for case in cases:
        args, right, _ = case
        try:
            given = attempt(lambda *args: found.observed(answer(*args), args), args, restore)
        except Failed:
            continue
        if differ(given, right, found.tolerance) is None:
            met.append(case)
        say(share(), heard[1])


def _idle(found: Exercise, args: tuple, right: Any) -> bool:
    """Whether a function that does nothing passes a case."""
    with contextlib.suppress(Exception):
        return difference(found.observed(None, args), right, found.tolerance) is None
    return False
