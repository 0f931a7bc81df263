"""Exercises: ``check(id, answer)`` tries an answer and says what is wrong with it, ``hint(id)`` helps in three steps."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake, Result, check, hint, known_ids, load

__all__ = ["Case", "Exercise", "Mistake", "Result", "check", "hint", "known_ids", "load"]
