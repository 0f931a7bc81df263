"""Exercises: ``check(id, answer)`` tries an answer and says what is wrong with it, and ``hint(id)`` helps step by step.

``check_solution(id, solution)`` is for the folded solutions, which name their answer ``solution``, so that they do not
overwrite the reader's names.
"""

from cs336kit.teach.exercises.checking import Result, check, check_solution
from cs336kit.teach.exercises.core import Exercise, Hint, exercise, hint, known_ids, load

__all__ = ["Exercise", "Hint", "Result", "check", "check_solution", "exercise", "hint", "known_ids", "load"]


def __dir__() -> list[str]:
    return list(__all__)
