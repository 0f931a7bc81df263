"""Exercise 02.2: index arithmetic."""

from cs336kit import predict
from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def position(index, strides, offset):
    return predict.element_offset(index, strides=strides, offset=offset)


EXERCISE = Exercise(
    id="02.2",
    reference=position,
    cases=lambda: [
        Case(((1, 2), (4, 1), 0)),
        Case(((1, 2), (4, 1), 5)),
        Case(((2, 0, 3), (1, 7, 12), 2)),
        Case(((3, 1), (0, 2), 1)),
    ],
    mistakes=(
        Mistake(
            lambda index, strides, offset: position(index, strides, 0),
            "The storage offset is missing: for {case} you returned {given}. The view does not begin where the storage "
            "begins.",
        ),
        Mistake(
            lambda index, strides, offset: position(index, strides, offset) + 1,
            "You counted from one: for {case} you returned {given}. Positions in the storage count from zero.",
        ),
        Mistake(
            lambda index, strides, offset: position(index, tuple(reversed(strides)), offset),
            "Index and strides are paired the wrong way round: for {case} you returned {given}. Axis 0 of one belongs "
            "to axis 0 of the other.",
        ),
        Mistake(
            lambda index, strides, offset: position(index[:2], strides[:2], offset),
            "You wrote two axes out: for {case} you returned {given}. A tensor may have any number of axes; take index "
            "and strides together with zip.",
        ),
        Mistake(
            lambda index, strides, offset: position(index, strides, 0) - offset,
            "You subtracted the offset: for {case} you returned {given}. The view begins that far into the storage, so "
            "add it.",
        ),
        Mistake(
            lambda index, strides, offset: 4 * position(index, strides, offset),
            "This is an address in bytes: for {case} you returned {given}. Count elements.",
        ),
    ),
    hints=(
        "Each step along an axis moves you by that axis's stride. Where do you start?",
        "Multiply each index by its stride, add them all, and add the offset.",
        "return ___ + sum(i * s for i, s in zip(index, ___))",
    ),
    checked="two and three axes, with and without an offset, and a stride of 0.",
)
