"""Exercise 02.3: the diagonal as a view."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_02.observed import values_and_storage


def diagonal(x):
    return x.as_strided((min(x.shape),), (sum(x.stride()),), x.storage_offset())


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


EXERCISE = Exercise(
    id="02.3",
    reference=diagonal,
    cases=_matrices,
    observe=values_and_storage,
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
