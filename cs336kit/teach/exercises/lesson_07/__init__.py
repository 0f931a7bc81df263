"""Exercises of lesson 07: the FLOPs of gradients."""

from cs336kit.teach.exercises.lesson_07 import frozen, lora, recompute, two_layers, utilization, weight_gradient

EXERCISES = (
    two_layers.EXERCISE,
    weight_gradient.EXERCISE,
    frozen.EXERCISE,
    lora.EXERCISE,
    recompute.EXERCISE,
    utilization.EXERCISE,
)
