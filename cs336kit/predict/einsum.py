"""FLOPs of an einsum pattern: parse it, choose an order of pairwise products, count each."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cs336kit.predict.checks import positive_int, shown

#: The search tries every order: 2,700 for six operands, 1,587,600 for eight.
MOST_OPERANDS = 7
_Names = list[str]
_Shapes = Sequence[Sequence[int]]
_Sizes = Mapping[str, int]
_Operands = list[frozenset[str]]


@dataclass(frozen=True)
class EinsumStep:
    """One step: the axes of its inputs and of its output, its kind ("matmul", "multiply" or "sum"), and its FLOPs."""

    inputs: tuple[str, ...]
    output: str
    kind: str
    flops: int


class EinsumFlops(int):
    """The FLOPs of an einsum, an int: `.steps` are the pairwise steps, `.matmul` is what a FLOP counter counts of them."""

    steps: tuple[EinsumStep, ...]

    @property
    def total(self) -> int:
        return int(self)

    @property
    def matmul(self) -> int:
        """FLOPs of the steps that are matrix products; torch's counter counts element-wise products and sums as 0."""
        return sum(step.flops for step in self.steps if step.kind == "matmul")


def einsum_flops(pattern: str, /, *shapes: Sequence[int], order: str = "left", **axes: int) -> EinsumFlops:
    """FLOPs of an einsum pattern, from the sizes of its axes or from the shapes of its operands.

    Patterns: einops ("batch seq d, d f -> batch seq f") or letters ("bsd,df->bsf"), with `...` if shapes are given.
    A product that sums over an axis costs 2 FLOPs per combination of all axes of its two inputs, one that sums over
    none costs 1 per output element; an axis that only one operand has is summed first, 1 per element.
    More than two operands are multiplied pairwise: `order="left"` from left to right, as torch does without opt_einsum, or
    `order="best"` in the cheapest of all orders, which numpy searches (at most 7 operands).
    Left out: copies to reorder axes, which cost bytes and no FLOPs.
    Raises ValueError for a pattern or sizes that do not fit. Source: the definition of einsum.
    """
    for shape in shapes:
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            given = shown(shape) if isinstance(shape, (int, float, str, type(None))) else f"a {type(shape).__name__}"
            raise ValueError(f"the shape of an operand is a tuple such as (2, 3) or x.shape, got {given}.")
    inputs, output = _parse(pattern, shapes, axes)
    sizes = _sizes(pattern, inputs, output, shapes, axes)
    if order not in ("left", "best"):
        raise ValueError(
            f"order must be 'left' (left to right) or 'best' (cheapest of all orders), got {shown(order)}."
        )
    if order == "best" and len(inputs) > MOST_OPERANDS:
        raise ValueError(
            f"{shown(pattern)} has {len(inputs)} operands; the search for the best order takes at most {MOST_OPERANDS}."
        )
    steps, operands = _sum_lone_axes(inputs, output, sizes)
    if order == "best" and len(operands) > 2:
        steps += _products(operands, _best_order(operands, output, sizes), output, sizes)
    else:  # backwards, so that the product so far is always last and meets its neighbor
        steps += _products(operands[::-1], [(k - 1, k) for k in range(len(operands) - 1, 0, -1)], output, sizes)
    result = EinsumFlops(sum(step.flops for step in steps))
    result.steps = tuple(steps)
    return result


# --- the pattern ------------------------------------------------------------------------------------------------------


def _parse(pattern: str, shapes: _Shapes, axes: _Sizes) -> tuple[list[_Names], _Names]:
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        raise ValueError(f"a pattern reads like 'b s d, d f -> b s f', with one '->', got {shown(pattern)}.")
    if re.search(r"[()\[\]]", pattern):
        raise ValueError(
            f"{shown(pattern)} has brackets, which belong to rearrange: in an einsum give each axis its own name."
        )
    left, right = pattern.split("->")
    terms = [term.strip() for term in left.split(",")]
    spaced = any(" " in term.replace("...", "") for term in (*terms, right.strip()))
    words = {word for term in (*terms, right) for word in term.replace("...", " ").split()}
    # "ij,jk->ik" is letters unless the caller sized an axis called "ij".
    letters = not spaced and not any(len(word) > 1 for word in words & axes.keys()) and _fits_letters(terms, shapes)
    inputs = [_names(term, letters, pattern) for term in terms]
    output = _names(right.strip(), letters, pattern)
    if shapes and len(shapes) != len(inputs):
        raise ValueError(
            f"{shown(pattern)} has {len(inputs)} operands, but {len(shapes)} shapes were given: {_shown(shapes)}."
        )
    if any("..." in names for names in (*inputs, output)):
        inputs, output = _expand_ellipsis(pattern, inputs, output, shapes)
    unknown = [axis for axis in output if all(axis not in names for names in inputs)]
    if unknown:
        there = ", ".join(dict.fromkeys(axis for names in inputs for axis in names)) or "none"
        raise ValueError(
            f"{shown(pattern)}: the output has {', '.join(unknown)}, which no operand has; operands have {there}."
        )
    if len(set(output)) < len(output):
        raise ValueError(f"{shown(pattern)}: the output names an axis twice; each may appear once.")
    return inputs, output


def _fits_letters(terms: _Names, shapes: _Shapes) -> bool:
    """Whether unspaced terms can be read letter by letter: not if they are words whose shapes have one axis each."""
    words = any(len(term) > 1 for term in terms if "..." not in term)
    return not (shapes and words and all(len(shape) == 1 for shape in shapes))


def _names(term: str, letters: bool, pattern: str) -> _Names:
    names: _Names = []
    for word in re.findall(r"\.\.\.|[^\s.]+|\.+", term):
        if word == "...":
            names.append(word)
        elif not word.isidentifier():
            raise ValueError(
                f"{shown(pattern)}: {shown(word)} is not a name of an axis; use letters, digits and underscores, or '...'."
            )
        else:
            names.extend(word if letters else [word])
    if names.count("...") > 1:
        raise ValueError(f"{shown(pattern)} has '...' twice in {shown(term)}; it may appear once in an operand.")
    return names


def _expand_ellipsis(
    pattern: str, inputs: list[_Names], output: _Names, shapes: _Shapes
) -> tuple[list[_Names], _Names]:
    if not shapes:
        raise ValueError(
            f"{shown(pattern)} has '...': give the shapes of the operands, since sizes cannot name its axes."
        )
    most = max(len(shape) - len(names) + 1 for names, shape in zip(inputs, shapes, strict=True) if "..." in names)
    hidden = [f"...{place}" for place in range(most)]

    def expand(names: _Names, count: int) -> _Names:
        at = names.index("...") if "..." in names else None
        return names if at is None else [*names[:at], *hidden[most - count :], *names[at + 1 :]]

    counts = [len(shape) - len(names) + 1 for names, shape in zip(inputs, shapes, strict=True)]
    return [expand(names, count) for names, count in zip(inputs, counts, strict=True)], expand(output, most)


def _sizes(pattern: str, inputs: list[_Names], output: _Names, shapes: _Shapes, axes: _Sizes) -> dict[str, int]:
    names = list(dict.fromkeys(axis for operand in inputs for axis in operand))
    extra = [axis for axis in axes if axis not in names]
    if extra:
        raise ValueError(
            f"{shown(pattern)} has the axes {', '.join(names)}; sizes were also given for {', '.join(extra)}."
        )
    sizes = {axis: positive_int(f"the size of axis {axis}", size) for axis, size in axes.items()}
    for operand, shape in zip(inputs, shapes, strict=False):
        if len(operand) != len(shape):
            raise ValueError(
                f"{shown(pattern)}: the operand '{' '.join(operand)}' has {len(operand)} axes, but its shape is "
                f"{shown(tuple(shape))}."
            )
        for axis, size in zip(operand, shape, strict=True):
            size = positive_int(f"the size of axis {axis}", size)
            if axis.startswith("...") and 1 in (size, sizes.get(axis)):
                sizes[axis] = max(size, sizes.get(axis, 1))  # axes behind '...' broadcast
            elif sizes.setdefault(axis, size) != size:
                given = _shown(shapes) + "".join(f", {name}={value}" for name, value in axes.items())
                raise ValueError(f"{shown(pattern)}: axis {axis} is {sizes[axis]} and {size} at once; given: {given}.")
    missing = [axis for axis in names if axis not in sizes]
    if missing:
        given = ", ".join(f"{axis}={size}" for axis, size in sizes.items()) or "nothing"
        raise ValueError(f"{shown(pattern)} also needs {', '.join(f'{axis}=…' for axis in missing)}; given: {given}.")
    return sizes


def _shown(shapes: _Shapes) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


# --- the order --------------------------------------------------------------------------------------------------------


def _volume(axes: Iterable[str], sizes: _Sizes) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _label(axes: frozenset[str], sizes: _Sizes) -> str:
    return " ".join(axis for axis in sizes if axis in axes) or "·"


def _sum_lone_axes(inputs: list[_Names], output: _Names, sizes: _Sizes) -> tuple[list[EinsumStep], _Operands]:
    """Add up, in each operand, the axes that neither another operand nor the output has."""
    steps, operands = [], []
    for place, names in enumerate(inputs):
        elsewhere = set(output).union(*inputs[:place], *inputs[place + 1 :])
        axes, kept = frozenset(names), frozenset(names) & elsewhere
        if kept != axes:
            steps.append(EinsumStep((_label(axes, sizes),), _label(kept, sizes), "sum", _volume(axes, sizes)))
        operands.append(kept)
    return steps, operands


def _products(operands: _Operands, pairs: Iterable[tuple[int, int]], output: _Names, sizes: _Sizes) -> list[EinsumStep]:
    """Multiply two operands at a time and sum the axes that nothing needs later; the product goes to the end of the list."""
    steps = []
    for low, high in map(sorted, pairs):
        a, b = operands[high], operands[low]
        operands = [axes for place, axes in enumerate(operands) if place not in (low, high)]
        every = a | b
        kept = every & frozenset(output).union(*operands)
        kind, factor = ("matmul", 2) if kept != every else ("multiply", 1)
        inputs = (_label(a, sizes), _label(b, sizes))
        steps.append(EinsumStep(inputs, _label(kept, sizes), kind, factor * _volume(every, sizes)))
        operands.append(kept)
    return steps


def _best_order(operands: _Operands, output: _Names, sizes: _Sizes) -> list[tuple[int, int]]:
    """The pairs of operands, one after another, whose products cost the fewest FLOPs."""
    try:
        import numpy  # only here: everything else in predict is the standard library
    except ImportError:
        raise ImportError("numpy searches the best order: pip install numpy, or take order='left'.") from None
    if frozenset().union(*operands) == frozenset(output):
        # numpy finds nothing to order if nothing is summed; an axis of size 1, summed at the end, costs the same.
        operands, sizes = [axes | {""} for axes in operands], {**sizes, "": 1}
    numbers = {axis: number for number, axis in enumerate(sizes)}
    arguments: list[Any] = []
    for axes in map(tuple, operands):
        shape = [sizes[axis] for axis in axes]
        arguments += [numpy.broadcast_to(0, shape), [numbers[axis] for axis in axes]]
    # With a limit that no tensor reaches; by default numpy refuses tensors larger than the operands.
    limit = 2 * math.prod(sizes.values())
    return numpy.einsum_path(*arguments, [numbers[axis] for axis in output], optimize=("optimal", limit))[0][1:]
