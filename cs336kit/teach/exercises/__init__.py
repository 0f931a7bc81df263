"""Exercises: ``check(id, answer)`` tries an answer and says what is wrong with it, ``hint(id)`` helps step by step."""

from cs336kit.teach.exercises.core import Exercise, Hint, Result, check, exercise, hint, known_ids, load

__all__ = ["Exercise", "Hint", "Result", "check", "exercise", "hint", "known_ids", "load"]
