"""Exercise 02.6: can it be viewed?"""

import math

from cs336kit import predict
from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def can_view(shape, strides, to):
    return predict.view_strides(shape, strides=strides, to=to) is not None


EXERCISE = Exercise(
    id="02.6",
    reference=can_view,
    cases=lambda: [
        Case(((2, 3), (3, 1), (3, 2)), label="a contiguous (2, 3) as (3, 2)"),
        Case(((3, 2), (1, 3), (6,)), label="a transposed (3, 2) as (6,)"),
        Case(((3, 2), (1, 3), (3, 2, 1)), label="a transposed (3, 2) as (3, 2, 1)"),
        Case(((4, 6), (12, 1), (2, 2, 6)), label="the left half of the columns, (4, 6) as (2, 2, 6)"),
        Case(((4, 6), (12, 1), (24,)), label="the left half of the columns, (4, 6) as (24,)"),
        Case(((2, 1, 3), (3, 99, 1), (6,)), label="(2, 1, 3) with strides (3, 99, 1) as (6,)"),
        Case(((2, 3, 4), (1, 2, 6), (2, 12)), label="(2, 3, 4) with strides (1, 2, 6) as (2, 12)"),
        Case(((5, 4), (0, 1), (20,)), label="an expanded (5, 4) as (20,)"),
        Case(((2, 3, 4), (1, 8, 2), (2, 12)), label="(2, 3, 4) with strides (1, 8, 2) as (2, 12)"),
        Case(((4, 6), (12, 1), (3, 2, 4)), label="the left half of the columns, (4, 6) as (3, 2, 4)"),
    ],
    mistakes=(
        Mistake(
            lambda shape, strides, to: tuple(strides) == predict.contiguous_strides(shape),
            "You ask whether the tensor is contiguous: for {case} you returned {given}. That is sufficient, not "
            "necessary: an axis may be split, or one of size 1 added, whatever the strides are.",
        ),
        Mistake(
            lambda shape, strides, to: math.prod(shape) == math.prod(to),
            "You compare the number of elements: for {case} you returned {given}. The elements must also come in the "
            "same order with fixed steps.",
        ),
        Mistake(
            lambda shape, strides, to: can_view(shape, strides, to) or len(to) > len(shape),
            "You let every shape with more axes through: for {case} you returned {given}. A new axis may not take "
            "elements from two runs: cut from the right, and every new size must divide what is left of its run.",
        ),
        Mistake(
            lambda shape, strides, to: can_view(shape, strides, to) and 1 not in shape,
            "You let an axis of size 1 stop a merge: for {case} you returned {given}. It is never stepped along, so its "
            "stride means nothing: skip it.",
        ),
    ),
    hints=(
        "When can two neighbouring axes be walked with one step, as if they were one axis?",
        "Merge axes i and i+1 where stride[i] == stride[i+1] * size[i+1], skipping sizes of 1. Then cut the runs: from "
        "the right, every new size must divide what is left of its run.",
        "for size in reversed(to): if rest == 1 and size > 1: rest = runs.pop(); if rest % size: return False; rest //= ___",
    ),
    checked="splits, merges, a merge of two axes out of three, added axes, a new axis across two runs, axes of size 1 with "
    "odd strides, permuted and expanded tensors.",
)
