"""Exercises of lesson 10: the training loop."""

from cs336kit.teach.exercises.lesson_10 import checkpoint_size, prefetching, shifted_batch, starts, uneven_accumulation

EXERCISES = (
    starts.EXERCISE,
    shifted_batch.EXERCISE,
    uneven_accumulation.EXERCISE,
    prefetching.EXERCISE,
    checkpoint_size.EXERCISE,
)
