"""Exercises of lesson 02: strides and views."""

from cs336kit.teach.exercises.lesson_02 import can_view, causal_mask, diagonal, position, strides, windows

EXERCISES = (
    strides.EXERCISE,
    position.EXERCISE,
    diagonal.EXERCISE,
    windows.EXERCISE,
    causal_mask.EXERCISE,
    can_view.EXERCISE,
)
