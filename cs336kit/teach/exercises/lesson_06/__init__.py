"""Exercises of lesson 06: computation graphs."""

from cs336kit.teach.exercises.lesson_06 import affine, backward, fan_out, kept_bytes, numeric_gradient, regression

EXERCISES = (
    regression.EXERCISE,
    fan_out.EXERCISE,
    backward.EXERCISE,
    affine.EXERCISE,
    kept_bytes.EXERCISE,
    numeric_gradient.EXERCISE,
)
