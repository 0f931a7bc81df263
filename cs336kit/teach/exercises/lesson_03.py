"""Exercises of lesson 03: storage and strides."""

import math

import torch

from cs336kit import measure, predict
from cs336kit.teach.exercises.core import exercise


@exercise(
    "03.1",
    cases=[(shape,) for shape in ((3, 4), (2, 3, 5), (7,), (6, 1, 2, 4), ())],
    mistakes={
        "tuple(4 * step for step in right)": "these are bytes. NumPy counts strides in bytes, torch in elements.",
        "right or (1,)": "a tensor without axes has no strides. Add one stride for each size to an empty list.",
        "tuple(math.prod(shape[:axis]) for axis in range(len(shape)))": "column-major order: torch's last axis steps by 1.",
        "right[::-1]": "the right strides in the wrong order. The stride of axis 0 comes first.",
        "tuple(math.prod(shape[axis:]) for axis in range(len(shape)))": "an axis steps over those to its right, not over itself.",
        "(*shape[1:], 1)[: len(shape)]": "you took the next size alone. Multiply all sizes to the right of an axis.",
    },
    hints=(
        "How many elements lie between x[0, 0] and x[1, 0]? And between x[0, 0] and x[0, 1]?",
        "Go from the last axis to the first. The step starts at 1 and is multiplied by the size of each axis passed.",
        "strides, step = [], 1; for size in reversed(shape): strides.append(___); step *= ___; then reverse.",
    ),
    checked="one to four axes, an axis of size 1, and no axis at all.",
    avoid=("torch", "contiguous_strides"),
)
def strides_of(shape):
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@exercise(
    "03.2",
    cases=[((1, 2), (4, 1), 0), ((1, 2), (4, 1), 5), ((2, 0, 3), (1, 7, 12), 2), ((3, 1), (0, 2), 1)],
    mistakes={
        "right_if(offset=0)": "the storage offset is missing. The view does not begin where the storage begins.",
        "right + 1": "you counted from one. Positions in the storage count from zero.",
        "right_if(strides=strides[::-1])": "index and strides are paired the wrong way round: axis 0 belongs to axis 0.",
        "right_if(index=index[:2])": "you wrote two axes out. Take index and strides together with zip.",
        "right - 2 * offset": "you subtracted the offset. The view begins that far into the storage, so add it.",
        "4 * right": "this is an address in bytes. Count elements.",
    },
    hints=(
        "Each step along an axis moves you by that axis's stride. Where do you start?",
        "Multiply each index by its stride, add them all, and add the offset.",
        "return ___ + sum(i * s for i, s in zip(index, ___))",
    ),
    checked="two and three axes, with and without an offset, and a stride of 0.",
)
def position(index, strides, offset):
    return offset + sum(i * step for i, step in zip(index, strides, strict=False))


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
    "03.3",
    cases=_matrices,
    observe=_values_and_storage,
    mistakes={
        "right.clone()": "the values are right, and they are a copy. Build a view with as_strided.",
        "diagonal(x, step=lambda _: x.shape[1] + 1)": "you assumed that x is contiguous. Ask x.stride().",
        "diagonal(x, first=0)": "you began at the start of the storage. A view begins at x.storage_offset().",
        "diagonal(x, step=lambda steps: steps[0])": "you walked down a column. A step goes along both axes.",
        "diagonal(x, step=lambda steps: steps[0] + 1)": "you took 1 for the step to the next column; it is x.stride(1).",
        "diagonal(x, length=lambda sizes: sizes[0])": "you read past the matrix: its diagonal ends with the shorter side.",
    },
    hints=(
        "From x[i, i] to x[i + 1, i + 1] you step once along each axis. How far is that in the storage?",
        "x.as_strided(size, stride, offset): one axis, min(rows, columns) long, whose stride is the sum of both.",
        "return x.as_strided((min(x.shape),), (x.stride(0) + ___,), x.___())",
    ),
    checked="square, wide and tall matrices, a transposed one, slices that begin inside the storage and one that skips; all "
    "as views.",
    avoid=("diagonal", "diag", "linalg_diagonal"),
)
def diagonal(x, *, length=min, step=sum, first=None):
    return x.as_strided((length(x.shape),), (step(x.stride()),), x.storage_offset() if first is None else first)


def _vectors():
    x = torch.arange(40)
    return {
        "10 elements, windows of 3": (x[:10], 3),
        "10 elements, windows of 4, step 2": (x[3:13], 4, 2),
        "every second element, windows of 5, step 3": (x[:32:2], 5, 3),
        "one window that fits exactly": (x[5:12], 7, 2),
    }


@exercise(
    "03.4",
    cases=_vectors,
    observe=_values_and_storage,
    mistakes={
        "right.clone()": "the values are right, and they are a copy. Windows that overlap can share the storage.",
        "windows(x, size, step, count=len(right) + 1)": "one window too many: the last one reads past the end of x.",
        "windows(x, size, step, count=len(right) - 1)": "the last window that fits is missing.",
        "right_if(step=1)": "the step between windows is ignored.",
        "windows(x, size, step, between=step, inside=1)": "x skips elements of its storage: multiply by x.stride(0).",
        "windows(x, size, step, between=x.stride(0), inside=step * x.stride(0))": "the two strides are swapped.",
    },
    hints=(
        "The result has two axes. How far in the storage is the next element of a window, and how far the next window?",
        "The shape is ((len(x) − size) // step + 1, size), the strides are step and 1, both times x.stride(0).",
        "return x.as_strided((___, size), (step * x.stride(0), ___), x.storage_offset())",
    ),
    checked="steps of 1, 2 and 3, an x that skips elements, one that begins inside its storage, and an exact fit.",
    avoid=("unfold",),
)
def windows(x, size, step=1, *, count=None, between=None, inside=None):
    count = (len(x) - size) // step + 1 if count is None else count
    steps = (between or step * x.stride(0), inside or x.stride(0))
    return x.as_strided((count, size), steps, x.storage_offset())


@exercise(
    "03.5",
    cases=[(4, 4), (2, 5), (1, 3), (6, 6)],
    mistakes={
        "~right": "it is True where the query must not look. That is what masked_fill takes; here True allows.",
        "right.tril(keys - queries - 1)": "a query cannot see itself: the diagonal is missing.",
        "torch.ones_like(right).triu(keys - queries)": "rows and columns are swapped: row 0, a query, sees the fewest keys.",
        "torch.ones_like(right)": "nothing is hidden: every query may look everywhere, the future included.",
        "torch.ones_like(right).tril(queries - keys)": "even the past is hidden: the shift goes the wrong way.",
        "right.tril()": "the last query should see all keys. The first keys − queries keys are the past.",
    },
    hints=(
        "Row i is a query, column j a key. The last query stands at the last key. Which keys may it see?",
        "Query i stands at position i + keys − queries and may see every key j up to there, itself included.",
        "return torch.ones(queries, keys, dtype=torch.bool).tril(___)",
    ),
    checked="square masks, a row of one query, and fewer queries than keys (as with a cache).",
)
def causal_mask(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@exercise(
    "03.6",
    cases={
        "a contiguous (2, 3) as (3, 2)": ((2, 3), (3, 1), (3, 2)),
        "a transposed (3, 2) as (6,)": ((3, 2), (1, 3), (6,)),
        "a transposed (3, 2) as (3, 2, 1)": ((3, 2), (1, 3), (3, 2, 1)),
        "the left half of the columns, (4, 6) as (2, 2, 6)": ((4, 6), (12, 1), (2, 2, 6)),
        "the left half of the columns, (4, 6) as (24,)": ((4, 6), (12, 1), (24,)),
        "(2, 1, 3) with strides (3, 99, 1) as (6,)": ((2, 1, 3), (3, 99, 1), (6,)),
        "(2, 3, 4) with strides (1, 2, 6) as (2, 12)": ((2, 3, 4), (1, 2, 6), (2, 12)),
        "an expanded (5, 4) as (20,)": ((5, 4), (0, 1), (20,)),
        "(2, 3, 4) with strides (1, 8, 2) as (2, 12)": ((2, 3, 4), (1, 8, 2), (2, 12)),
        "the left half of the columns, (4, 6) as (3, 2, 4)": ((4, 6), (12, 1), (3, 2, 4)),
    },
    mistakes={
        "tuple(strides) == strides_of(shape)": "you ask whether it is contiguous: enough, but not needed.",
        "math.prod(shape) == math.prod(to)": "you compare the number of elements. Their order must have fixed steps too.",
        "right or len(to) > len(shape)": "a new axis may not take elements from two runs: cut each run from the right.",
        "right and 1 not in shape": "an axis of size 1 is never stepped along, so its stride means nothing: skip it.",
    },
    hints=(
        "When can two neighbouring axes be walked with one step, as if they were one axis?",
        "Merge axes i and i+1 where stride[i] == stride[i+1] * size[i+1], skipping sizes of 1. Then cut the runs: from "
        "the right, every new size must divide what is left of its run.",
        "for size in reversed(to): if rest == 1 and size > 1: rest = runs.pop(); if rest % size: return False; rest //= ___",
    ),
    checked="splits, merges, a merge of two axes out of three, added axes, a new axis across two runs, axes of size 1 with "
    "odd strides, permuted and expanded tensors.",
    avoid=("torch", "view", "as_strided"),
)
def can_view(shape, strides, to):
    return predict.view_strides(shape, strides=strides, to=to) is not None
