"""Exercises of lesson 09: update rules, their state, and what is decayed and clipped."""

from cs336kit.teach.exercises.lesson_09 import adam, adamw, clipping, decay_groups, momentum, state_bytes

EXERCISES = (
    momentum.EXERCISE,
    adam.EXERCISE,
    adamw.EXERCISE,
    state_bytes.EXERCISE,
    clipping.EXERCISE,
    decay_groups.EXERCISE,
)
