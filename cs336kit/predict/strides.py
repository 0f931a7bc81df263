"""Where an element is stored: shape, strides and offset into a flat storage. Everything counts elements, not bytes."""

import math
from collections.abc import Iterable
from itertools import product
from operator import mul

from cs336kit.predict.checks import non_negative_int, positive_int, shown


def _sizes(shape: Iterable[int], name: str = "shape") -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ValueError(f"{name} must be a tuple of sizes such as (2, 3), got {shown(shape)}.")
    return tuple(positive_int(f"{name}[{axis}]", size) for axis, size in enumerate(shape))


def _steps(strides: Iterable[int], *, axes: int) -> tuple[int, ...]:
    if isinstance(strides, str) or not isinstance(strides, Iterable):
        raise ValueError(f"strides must be a tuple of whole numbers such as (3, 1), got {shown(strides)}.")
    steps = tuple(non_negative_int(f"strides[{axis}]", step) for axis, step in enumerate(strides))
    if len(steps) != axes:
        raise ValueError(f"strides must have one step for each of the {axes} axes, got {len(steps)}: {shown(steps)}.")
    return steps


def contiguous_strides(shape: Iterable[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor: the last axis steps by 1, every other by the product of the sizes to its right.

    Unit: elements (torch; NumPy counts bytes). Errors: ValueError for sizes below 1.
    """
    strides, step = [], 1
    for size in reversed(_sizes(shape)):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def extent(shape: Iterable[int], *, strides: Iterable[int], offset: int = 0) -> tuple[int, int]:
    """Lowest and highest position in the storage that the tensor touches; the storage needs `highest + 1` elements."""
    sizes = _sizes(shape)
    steps = _steps(strides, axes=len(sizes))
    lowest = non_negative_int("offset", offset)
    return lowest, lowest + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))


def view_strides(shape: Iterable[int], *, strides: Iterable[int], to: Iterable[int]) -> tuple[int, ...] | None:
    """Strides with which `to` shows the same elements in the same order without a copy, or None if a copy is needed.

    The view rule: neighboring axes i, i+1 merge only where strideᵢ = strideᵢ₊₁ · sizeᵢ₊₁. Merge all that do into
    runs; the new shape must then cut every run into whole axes. Errors: ValueError if the counts of elements differ.
    Source: the documentation of `torch.Tensor.view`.
    """
    sizes, target = _sizes(shape), _sizes(to, "to")
    steps = _steps(strides, axes=len(sizes))
    if math.prod(sizes) != math.prod(target):
        raise ValueError(f"shape {sizes} has {math.prod(sizes)} elements and {target} has {math.prod(target)}.")

    runs: list[tuple[int, int]] = []  # (elements, step between them); an axis of size 1 never steps
    for size, step in zip(sizes, steps, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * step:
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))

    new_strides: list[int] = []
    remaining, step = runs.pop() if runs else (1, 1)
    for size in reversed(target):
        if remaining == 1 and size > 1 and runs:
            remaining, step = runs.pop()
        if remaining % size:
            return None
        new_strides.append(step)
        step, remaining = step * size, remaining // size
    return tuple(reversed(new_strides))


def overlaps(shape: Iterable[int], *, strides: Iterable[int]) -> bool:
    """Whether two different indices land on the same element, so that an in-place write is ambiguous.

    Two rules settle nearly every tensor; the rest are enumerated, which takes time and memory in proportion to the
    number of elements.
    """
    sizes = _sizes(shape)
    steps = _steps(strides, axes=len(sizes))
    _, highest = extent(sizes, strides=steps)
    if math.prod(sizes) > highest + 1:
        return True  # more indices than positions
    reach = 0
    for step, size in sorted(zip(steps, sizes, strict=True)):
        if size > 1 and step <= reach:
            break
        reach += (size - 1) * step
    else:
        return False  # every axis steps over all that the finer axes reach
    offsets = [sum(map(mul, index, steps)) for index in product(*map(range, sizes))]
    return len(set(offsets)) < len(offsets)
