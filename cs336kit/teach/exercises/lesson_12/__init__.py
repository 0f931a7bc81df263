"""Exercises of lesson 12: mixed precision."""

from cs336kit.teach.exercises.lesson_12 import fp8_scale, loss_scale, lost_update, smallest_batch, unscale_and_clip

EXERCISES = (
    lost_update.EXERCISE,
    loss_scale.EXERCISE,
    unscale_and_clip.EXERCISE,
    fp8_scale.EXERCISE,
    smallest_batch.EXERCISE,
)
