"""Exercise 02.4: sliding windows."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_02.observed import values_and_storage


def windows(x, size, step=1):
    return x.unfold(0, size, step)


def _vectors():
    base = torch.arange(40)
    return [
        Case((base[:10], 3), label="10 elements, windows of 3"),
        Case((base[3:13], 4, 2), label="10 elements, windows of 4, step 2"),
        Case((base[:32:2], 5, 3), label="every second element, windows of 5, step 3"),
        Case((base[5:12], 7, 2), label="one window that fits exactly"),
    ]


def _window_count(x, size, step):
    return (len(x) - size) // step + 1


def _strided_windows(x, count, size, strides):
    return x.as_strided((count, size), strides, x.storage_offset())


EXERCISE = Exercise(
    id="02.4",
    reference=windows,
    cases=_vectors,
    observe=values_and_storage,
    mistakes=(
        Mistake(
            lambda x, size, step=1: x.unfold(0, size, step).clone(),
            "The values are right, and they are a copy: for {case} the result has a storage of its own. Windows that "
            "overlap can share it.",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(
                x, _window_count(x, size, step) + 1, size, (step * x.stride(0), x.stride(0))
            ),
            "There is one window too many: for {case} the last one reads past the end of x. The last window must still "
            "begin `size` elements before it.",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(
                x, (len(x) - size) // step, size, (step * x.stride(0), x.stride(0))
            ),
            "There is one window too few: for {case} the last window that fits is missing. With n − size steps there "
            "are n − size + 1 beginnings.",
        ),
        Mistake(
            lambda x, size, step=1: x.unfold(0, size, 1),
            "The step between windows is ignored: for {case} you returned {given}.",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(x, _window_count(x, size, step), size, (step, 1)),
            "You assumed that neighbours in x are neighbours in the storage: for {case} you returned {given}. Multiply "
            "by x.stride(0).",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(x, len(x) - size + 1, size, (step * x.stride(0), x.stride(0))),
            "You counted the windows as if the step were 1: for {case} the last ones read past the end of x. Divide by "
            "the step before you add one.",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(x, _window_count(x, size, step), size, (step, x.stride(0))),
            "Inside a window you step right, between windows you do not: for {case} you returned {given}. Multiply "
            "both steps by x.stride(0).",
        ),
        Mistake(
            lambda x, size, step=1: _strided_windows(
                x, _window_count(x, size, step), size, (x.stride(0), step * x.stride(0))
            ),
            "The two strides are swapped: for {case} you returned {given}. Axis 0 goes from window to window.",
        ),
        Mistake(
            lambda x, size, step=1: x.unfold(0, size, size),
            "These windows do not overlap: for {case} you returned {given}. The next window begins `step` elements "
            "later, not `size`.",
        ),
    ),
    hints=(
        "The result has two axes. How far in the storage is the next element of a window, and how far the next window?",
        "The shape is ((len(x) − size) // step + 1, size), the strides are step and 1, both times x.stride(0).",
        "return x.as_strided((___, size), (step * x.stride(0), ___), x.storage_offset())",
    ),
    checked="steps of 1, 2 and 3, an x that skips elements, one that begins inside its storage, and an exact fit.",
)
