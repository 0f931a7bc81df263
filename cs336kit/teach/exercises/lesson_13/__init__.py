"""Exercises of lesson 13: parameters and FLOPs of Transformers."""

from cs336kit.teach.exercises.lesson_13 import (
    attention_parameters,
    context_for_share,
    forward_flops,
    gpt2_parameters,
    mixture,
)

EXERCISES = (
    attention_parameters.EXERCISE,
    gpt2_parameters.EXERCISE,
    forward_flops.EXERCISE,
    mixture.EXERCISE,
    context_for_share.EXERCISE,
)
