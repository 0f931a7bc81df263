"""Exercises of lesson 02: strides and views."""

import math

import torch

from cs336kit import measure, predict
from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 02.1: strides of a contiguous tensor ----------------------------------------------------------------------------


def strides_of(shape):
    return predict.contiguous_strides(shape)


_STRIDES = Exercise(
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

# --- 02.2: index arithmetic ------------------------------------------------------------------------------------------


def position(index, strides, offset):
    return predict.element_offset(index, strides=strides, offset=offset)


_POSITION = Exercise(
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

# --- 02.3: the diagonal as a view ------------------------------------------------------------------------------------


def diagonal(x):
    return x.as_strided((min(x.shape),), (sum(x.stride()),), x.storage_offset())


def _values_and_storage(result, args):
    """What a view exercise is judged by: the values, and whether they are the argument's own memory."""
    return {"values": result, "same storage": measure.same_storage(result, args[0])}


def _matrices():
    x = torch.arange(36).view(6, 6)
    return [
        Case((x[:4, :4].clone(),), label="a 4 × 4 matrix"),
        Case((torch.arange(15).view(3, 5),), label="a 3 × 5 matrix"),
        Case((torch.arange(15).view(3, 5).T[:3],), label="a slice of a transposed matrix"),
        Case((x[1:4, 2:5],), label="a slice that begins at x[1, 2]"),
        Case((x[:5, 1:4],), label="a tall slice"),
        Case((x[::2, 1::2],), label="a slice that skips rows and columns"),
    ]


_DIAGONAL = Exercise(
    id="02.3",
    reference=diagonal,
    cases=_matrices,
    observe=_values_and_storage,
    mistakes=(
        Mistake(
            lambda x: x.diagonal().clone(),
            "The values are right, and they are a copy: for {case} the result has a storage of its own. Build a view "
            "with as_strided.",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (x.shape[1] + 1,), x.storage_offset()),
            "You assumed that x is contiguous: for {case} you returned {given}. Ask x.stride() instead of computing "
            "the strides from the shape.",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (sum(x.stride()),), 0),
            "You began at the start of the storage: for {case} you returned {given}. A view begins at "
            "x.storage_offset().",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (x.stride(0),), x.storage_offset()),
            "You walked down the first column: for {case} you returned {given}. One step along the diagonal is a step "
            "along both axes.",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (x.stride(1),), x.storage_offset()),
            "You walked along the first row: for {case} you returned {given}. One step along the diagonal is a step "
            "along both axes.",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (x.stride(0) + 1,), x.storage_offset()),
            "You took 1 for the step to the next column: for {case} you returned {given}. That step is x.stride(1).",
        ),
        Mistake(
            lambda x: x.as_strided((min(x.shape),), (max(x.stride()) + 1,), x.storage_offset()),
            "You took 1 for the smaller step: for {case} you returned {given}. A slice may skip along both axes: add "
            "x.stride(0) and x.stride(1).",
        ),
        Mistake(
            lambda x: x.as_strided((x.shape[0],), (sum(x.stride()),), x.storage_offset()),
            "The diagonal is as long as the shorter side: for {case} you returned {given}, which reads past the "
            "matrix into whatever follows.",
        ),
    ),
    hints=(
        "From x[i, i] to x[i + 1, i + 1] you step once along each axis. How far is that in the storage?",
        "x.as_strided(size, stride, offset): one axis, min(rows, columns) long, whose stride is the sum of both.",
        "return x.as_strided((min(x.shape),), (x.stride(0) + ___,), x.___())",
    ),
    checked="square, wide and tall matrices, a transposed one, slices that begin inside the storage and one that skips; all "
    "as views.",
)

# --- 02.4: sliding windows -------------------------------------------------------------------------------------------


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


_WINDOWS = Exercise(
    id="02.4",
    reference=windows,
    cases=_vectors,
    observe=_values_and_storage,
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

# --- 02.5: a causal mask ---------------------------------------------------------------------------------------------


def causal_mask(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


_MASK = Exercise(
    id="02.5",
    reference=causal_mask,
    cases=lambda: [Case((4, 4)), Case((2, 5)), Case((1, 3)), Case((6, 6))],
    mistakes=(
        Mistake(
            lambda q, k: ~causal_mask(q, k),
            "Your mask is True where the query must not look: for {case} it is the opposite of what is asked. That is "
            "what masked_fill takes; here True allows.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q - 1),
            "A query cannot see itself: for {case} the diagonal is missing, and softmax over the first row of a square "
            "mask would be 0/0.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(k - q),
            "Rows and columns are swapped: for {case} every query sees the future. Rows are queries, and row 0 sees "
            "the fewest keys.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool),
            "Nothing is hidden: for {case} every query may look everywhere, the future included.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(q - k),
            "The shift goes the wrong way: for {case} even the past is hidden. With more keys than queries the diagonal "
            "moves right, and tril's argument is positive.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(),
            "The corner is wrong when there are more keys than queries: for {case} the last query should see all keys. "
            "The first keys − queries keys are the past.",
        ),
    ),
    hints=(
        "Row i is a query, column j a key. The last query stands at the last key. Which keys may it see?",
        "Query i stands at position i + keys − queries and may see every key j up to there, itself included.",
        "return torch.ones(queries, keys, dtype=torch.bool).tril(___)",
    ),
    checked="square masks, a row of one query, and fewer queries than keys (as with a cache).",
)

# --- 02.6: can it be viewed? -----------------------------------------------------------------------------------------


def can_view(shape, strides, to):
    return predict.view_strides(shape, strides=strides, to=to) is not None


_CAN_VIEW = Exercise(
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

EXERCISES = (_STRIDES, _POSITION, _DIAGONAL, _WINDOWS, _MASK, _CAN_VIEW)
