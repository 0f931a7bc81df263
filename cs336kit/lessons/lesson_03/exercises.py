"""Exercises of lesson 03: storage, strides and views."""

import math
from itertools import pairwise

import torch

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise


def _as_if_contiguous(strip, shape, strides, offset):
    return read(strip, shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))), offset)


@exercise(
    "03.1",
    cases={
        "a contiguous (3, 4)": (list(range(24)), (3, 4), (4, 1), 0),
        "its transpose": (list(range(24)), (4, 3), (1, 4), 0),
        "x[1:, ::2] of it": (list(range(24)), (2, 2), (4, 2), 4),
        "letters, three axes with an offset": (list("abcdefghijklmnopqrstuvwxyz"), (2, 2, 3), (9, 1, 3), 2),
        "a row that is repeated": (list(range(5, 13)), (3, 2), (0, 2), 1),
        "a single element": ([5, 6, 7, 8], (), (), 2),
        "a vector that skips": ([5, 6, 7, 8], (2,), (3,), 0),
    },
    mistakes={
        "right_if(offset=0)": "you left out the offset, which is where reading begins.",
        "right_if(strides=strides[::-1])": "you paired shape and strides the wrong way round: axis 0 goes with axis 0.",
        _as_if_contiguous: "you read the strip as if the tensor were contiguous. Use the strides that are given.",
        "right_if(offset=max(1, len(shape)) * offset)": "the offset counts once, not once for each axis.",
        "[right]": "there is one pair of brackets too many.",
        "_flat(right)": "the elements are right. Put them into lists within lists, one level for each axis.",
    },
    hints=(
        "Every element of the first axis is a smaller tensor over the same strip. With which shape, strides and offset?",
        "Let the function call itself with one axis fewer. It ends where no axis is left, with one element of the strip.",
    ),
    checked="one to three axes and none, transposed, sliced, repeated, with and without an offset.",
    avoid=("torch", "numpy", "as_strided"),
)
def read(strip, shape, strides, offset):
    if not shape:
        return strip[offset]
    starts = [offset + i * strides[0] for i in range(shape[0])]
    return [read(strip, shape[1:], strides[1:], start) for start in starts]


def _flat(rows):
    return [x for row in rows for x in _flat(row)] if isinstance(rows, list) else [rows]


def _values_and_storage(result, args):
    return {"values": result, "same storage": measure.same_storage(result, args[0])}


def _matrices():
    x = torch.arange(36).view(6, 6)
    return {
        "a 4 × 4 matrix": (x[:4, :4].clone(),),
        "a 3 × 5 matrix": (torch.arange(15).view(3, 5),),
        "a slice of a transposed matrix": (torch.arange(15).view(3, 5).T[:3],),
        "a slice that begins at x[1, 2]": (x[1:4, 2:5],),
        "a tall slice": (x[:5, 1:4],),
        "a slice that skips rows and columns": (x[::2, 1::2],),
    }


@exercise(
    "03.2",
    cases=_matrices,
    observe=_values_and_storage,
    mistakes={
        "right.clone()": "the values are right, but they are a copy. Build a view with as_strided.",
        "right_if(step=lambda _: x.shape[1] + 1)": "you assumed that x is contiguous. Ask x.stride().",
        "right_if(first=0)": "you began at the start of the storage. A view begins at x.storage_offset().",
        "right_if(step=lambda steps: steps[0])": "you walked down a column. A step goes along both axes.",
        "right_if(step=lambda steps: steps[0] + 1)": "you took 1 for the step to the next column; it is x.stride(1).",
        "right_if(length=lambda sizes: sizes[0])": "you read past the matrix: its diagonal is as long as the shorter side.",
    },
    hints=(
        "From x[i, i] to x[i + 1, i + 1] you step once along each axis. How far is that in the storage?",
        "The result has one axis, which ends with the shorter side, and it begins where x begins.",
    ),
    checked="square, wide and tall matrices, a transposed one, slices that begin inside the storage and one that skips; all "
    "as views.",
    avoid=("diagonal", "diag", "linalg_diagonal", "diagonal_scatter", "einsum"),
)
def diagonal(x, *, length=min, step=sum, first=None):
    return x.as_strided((length(x.shape),), (step(x.stride()),), x.storage_offset() if first is None else first)


@exercise(
    "03.3",
    mistakes={
        "('A', ...)": "a view of one row keeps the logits of the whole step alive.",
        "('B', ...)": "the row is contiguous already, so contiguous() returns the same view, which keeps all logits alive.",
        "('C', 0.513024)": "C is right, but a bf16 number takes 2 bytes, not 4.",
        "('C', 0.000256512)": "C is right, but that is one step of a thousand.",
        "('C', 256.512)": "C is right, but that is in MB, and the task asks for GB.",
        "('C', 0.238888)": "C is right, but that is in GiB, and the task asks for GB.",
        "('C', 2101.346304)": "C is right, but those are all logits of all steps, and C keeps one row of each.",
    },
    hints=(
        "Does each line make a new storage? One of the three always does, and one does so only if it has to.",
        "The row has 128,256 elements of two bytes, and there is one row for each step.",
    ),
    checked="a clone of each row holds 0.257 GB; A and B would both hold 2,101 GB.",
    tolerance=0.03,
)
def line():
    return "C", 0.256512


@exercise(
    "03.4",
    cases={
        "a contiguous (2, 3)": ((2, 3), (3, 1)),
        "a transposed (3, 2)": ((3, 2), (1, 3)),
        "the left half of the columns, (4, 6)": ((4, 6), (12, 1)),
        "every other column of a (4, 6)": ((4, 3), (6, 2)),
        "(2, 1, 3) with strides (3, 99, 1)": ((2, 1, 3), (3, 99, 1)),
        "(2, 3, 1) with strides (3, 1, 7)": ((2, 3, 1), (3, 1, 7)),
        "(2, 3, 4) with strides (1, 8, 2)": ((2, 3, 4), (1, 8, 2)),
        "(2, 3, 4) with strides (24, 8, 2)": ((2, 3, 4), (24, 8, 2)),
        "an expanded (5, 4)": ((5, 4), (0, 1)),
        "a single number, expanded to (5, 4)": ((5, 4), (0, 0)),
        "a column, (6,) with a stride of 4": ((6,), (4,)),
        "a single element, (1, 1)": ((1, 1), (5, 5)),
        "no axis at all": ((), ()),
    },
    mistakes={
        "1 if right == 1 else None": "you ask whether the tensor is contiguous, but a vector may have any stride, such as 2.",
        "right_if(skip=0)": "an axis of size 1 is never stepped along, so its stride must not count.",
        "None if right is None else strides[-1] if strides else 1": "the last axis may have size 1, and is then never stepped "
        "along. The stride is that of the last axis that is longer.",
        "strides[-1] if strides else 1": "you took the last stride without asking whether the axes can be joined.",
        "right if right is None or len(strides) != 1 else 1": "a single axis needs no joining: its own stride is the answer.",
        "right or None": "0 is a stride, too: it reads one element again and again. None means that the axes do not join.",
    },
    hints=(
        "Drop the axes that are never stepped along. What has to hold for every two neighbors among the rest?",
        "When all axes join, the vector takes the smallest of their steps. Which axis has it?",
    ),
    checked="tensors that join and that do not, with any stride, of one to three axes and none, expanded, and with axes of "
    "size 1.",
    avoid=("torch", "view_strides", "as_strided"),
)
def one_axis(shape, strides, *, skip=1):
    axes = [(size, step) for size, step in zip(shape, strides, strict=True) if size != skip]
    for (_, left), (size, right) in pairwise(axes):
        if left != right * size:
            return None
    return axes[-1][1] if axes else 1


def _vectors():
    x = torch.arange(40)
    return {
        "10 elements, windows of 3": (x[:10], 3, 1),
        "10 elements that begin inside a storage, windows of 4, step 2": (x[3:13], 4, 2),
        "every second element, windows of 5, step 3": (x[:32:2], 5, 3),
        "one window that fits exactly": (x[5:12], 7, 2),
    }


@exercise(
    "03.5",
    cases=_vectors,
    observe=_values_and_storage,
    mistakes={
        "right.clone()": "the values are right, but they are a copy. Windows that overlap can share the storage.",
        "right_if(count=len(right) + 1)": "there is one window too many, and it reads past the end of x.",
        "right_if(count=len(right) - 1)": "the last window that fits is missing.",
        "right_if(step=1)": "you ignored the step between windows.",
        "right_if(first=0)": "your windows begin where the storage begins, but x may begin later.",
        "right_if(between=step)": "you went `step` elements of the storage from one window to the next, but `step` "
        "counts elements of x.",
        "right_if(between=step, inside=1)": "x skips elements of its storage: multiply by x.stride(0).",
        "right_if(between=x.stride(0), inside=step * x.stride(0))": "the two strides are swapped.",
    },
    hints=(
        "The result has two axes. How far away in the storage is the next element of a window, and how far the next window?",
        "Count the windows that fit: where does the last one begin? And what do steps become if x itself skips elements?",
    ),
    checked="steps of 1, 2 and 3, an x that skips elements, one that begins inside its storage, and an exact fit.",
    avoid=("unfold", "unfold_copy", "sliding_window_view"),
)
def windows(x, size, step, *, count=None, between=None, inside=None, first=None):
    count = (len(x) - size) // step + 1 if count is None else count
    steps = (between or step * x.stride(0), inside or x.stride(0))
    return x.as_strided((count, size), steps, x.storage_offset() if first is None else first)
