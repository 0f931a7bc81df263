"""Exercise 02.1: strides of a contiguous tensor."""

import math

from cs336kit import predict
from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def strides_of(shape):
    return predict.contiguous_strides(shape)


EXERCISE = Exercise(
    id="02.1",
    reference=strides_of,
    cases=lambda: [Case((shape,)) for shape in ((3, 4), (2, 3, 5), (7,), (6, 1, 2, 4), ())],
    mistakes=(
        Mistake(
            lambda shape: tuple(4 * step for step in strides_of(shape)),
            "These are bytes: for {case} you returned {given}. NumPy counts strides in bytes, torch in elements.",
        ),
        Mistake(
            lambda shape: tuple(8 * step for step in strides_of(shape)),
            "These are bytes of 8-byte elements: for {case} you returned {given}. Torch counts strides in elements.",
        ),
        Mistake(
            lambda shape: strides_of(shape) or (1,),
            "A tensor without axes has no strides: for {case} you returned {given}. Start from an empty list and add "
            "one stride for each size.",
        ),
        Mistake(
            lambda shape: tuple(math.prod(shape[:axis]) for axis in range(len(shape))),
            "This is column-major order (Fortran, MATLAB): for {case} you returned {given}. In torch the last axis "
            "steps by 1.",
        ),
        Mistake(
            lambda shape: tuple(reversed(strides_of(shape))),
            "The strides are the right ones in the wrong order: for {case} you returned {given}. The stride of axis 0 "
            "comes first.",
        ),
        Mistake(
            lambda shape: tuple(math.prod(shape[axis:]) for axis in range(len(shape))),
            "You are one axis too early: for {case} you returned {given}. An axis steps over the axes to its right; "
            "its own size does not count.",
        ),
        Mistake(
            lambda shape: (*shape[1:], 1)[: len(shape)],
            "You took the next size alone: for {case} you returned {given}. A step along an axis passes everything to "
            "its right, so multiply all those sizes.",
        ),
    ),
    hints=(
        "How many elements lie between x[0, 0] and x[1, 0]? And between x[0, 0] and x[0, 1]?",
        "Go from the last axis to the first. The step starts at 1 and is multiplied by the size of each axis passed.",
        "strides, step = [], 1; for size in reversed(shape): strides.append(___); step *= ___; then reverse.",
    ),
    checked="one to four axes, an axis of size 1, and no axis at all.",
)
