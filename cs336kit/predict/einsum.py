"""FLOPs of an einsum pattern: parse it, choose an order of pairwise products, count each."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from cs336kit.predict._common.checks import positive_int

#: The search over orders visits every split of every subset: 3¹⁰ = 59,049 for ten operands.
MOST_OPERANDS = 10


@dataclass(frozen=True)
class EinsumStep:
    """One step: the axes of its inputs, of its output, what it is ("matmul", "multiply" or "sum"), and its FLOPs."""

    inputs: tuple[str, ...]
    output: str
    kind: str
    flops: int


class EinsumFlops(int):
    """The FLOPs of an einsum, an int: `.steps` are the pairwise steps, `.matmul` what a FLOP counter sees of them."""

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
    none costs 1 per output element; an axis that one operand has alone is added up first, 1 per element.
    More than two operands are multiplied pairwise, `order="left"` from left to right as torch does without opt_einsum,
    `order="best"` in the cheapest of all orders. Left out: copies to reorder axes, which cost bytes and no FLOPs.
    Raises ValueError for a pattern or sizes that do not fit. Source: the definition of einsum.
    """
    for shape in shapes:
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            given = repr(shape) if isinstance(shape, (int, float, str, type(None))) else f"a {type(shape).__name__}"
            raise ValueError(f"the shape of an operand is a tuple such as (2, 3) or x.shape, got {given}.")
    inputs, output = _parse(pattern, shapes, axes)
    sizes = _sizes(pattern, inputs, output, shapes, axes)
    if order not in ("left", "best"):
        raise ValueError(f"order must be 'left' (left to right) or 'best' (cheapest of all orders), got {order!r}.")
    if len(inputs) > MOST_OPERANDS:
        raise ValueError(
            f"{pattern!r} has {len(inputs)} operands; the search for an order takes at most {MOST_OPERANDS}."
        )
    steps, operands = _sum_lone_axes(inputs, output, sizes)
    if order == "left":
        pairs = _left_to_right(operands, output, sizes)
    else:
        pairs = _cheapest(tuple(operands), frozenset(output), tuple(sizes.items()))[1]
    result = EinsumFlops(sum(step.flops for step in (*steps, *pairs)))
    result.steps = (*steps, *pairs)
    return result


# --- the pattern ------------------------------------------------------------------------------------------------------


def _parse(pattern, shapes, axes):
    if not isinstance(pattern, str) or pattern.count("->") != 1:
        raise ValueError(f"a pattern reads like 'b s d, d f -> b s f', with one '->', got {pattern!r}.")
    if re.search(r"[()\[\]]", pattern):
        raise ValueError(
            f"{pattern!r} has brackets, which belong to rearrange: in an einsum give each axis its own name."
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
            f"{pattern!r} has {len(inputs)} operands, but {len(shapes)} shapes were given: {_shown(shapes)}."
        )
    if any("..." in names for names in (*inputs, output)):
        inputs, output = _expand_ellipsis(pattern, inputs, output, shapes)
    unknown = [axis for axis in output if all(axis not in names for names in inputs)]
    if unknown:
        there = ", ".join(dict.fromkeys(axis for names in inputs for axis in names)) or "none"
        raise ValueError(
            f"{pattern!r}: the output has {', '.join(unknown)}, which no operand has; operands have {there}."
        )
    if len(set(output)) < len(output):
        raise ValueError(f"{pattern!r}: the output names an axis twice; each may stand there once.")
    return inputs, output


def _fits_letters(terms, shapes) -> bool:
    """Whether unspaced terms can be read letter by letter: not if they are words whose shapes have one axis each."""
    words = any(len(term) > 1 for term in terms if "..." not in term)
    return not (shapes and words and all(len(shape) == 1 for shape in shapes))


def _names(term: str, letters: bool, pattern: str) -> list[str]:
    names = []
    for word in re.findall(r"\.\.\.|[^\s.]+|\.+", term):
        if word == "...":
            names.append(word)
        elif not word.isidentifier():
            raise ValueError(
                f"{pattern!r}: {word!r} is no name of an axis; use letters, digits and underscores, or '...'."
            )
        else:
            names.extend(word if letters else [word])
    if names.count("...") > 1:
        raise ValueError(f"{pattern!r} has '...' twice in {term!r}; it may stand once in an operand.")
    return names


def _expand_ellipsis(pattern, inputs, output, shapes):
    if not shapes:
        raise ValueError(f"{pattern!r} has '...': give the shapes of the operands, since sizes cannot name its axes.")
    most = max(len(shape) - len(names) + 1 for names, shape in zip(inputs, shapes, strict=True) if "..." in names)
    hidden = [f"...{place}" for place in range(most)]

    def expand(names, count):
        at = names.index("...") if "..." in names else None
        return names if at is None else [*names[:at], *(hidden[most - count :] if count > 0 else []), *names[at + 1 :]]

    counts = [len(shape) - len(names) + 1 for names, shape in zip(inputs, shapes, strict=True)]
    return [expand(names, count) for names, count in zip(inputs, counts, strict=True)], expand(output, most)


def _sizes(pattern, inputs, output, shapes, axes) -> dict[str, int]:
    names = list(dict.fromkeys(axis for operand in inputs for axis in operand))
    extra = [axis for axis in axes if axis not in names]
    if extra:
        raise ValueError(f"{pattern!r} has the axes {', '.join(names)}; sizes were also given for {', '.join(extra)}.")
    sizes = {axis: positive_int(f"the size of axis {axis}", size) for axis, size in axes.items()}
    for operand, shape in zip(inputs, shapes, strict=False):
        if len(operand) != len(shape):
            raise ValueError(
                f"{pattern!r}: the operand '{' '.join(operand)}' has {len(operand)} axes, but its shape is {tuple(shape)}."
            )
        for axis, size in zip(operand, shape, strict=True):
            size = positive_int(f"the size of axis {axis}", size)
            if axis.startswith("...") and 1 in (size, sizes.get(axis)):
                sizes[axis] = max(size, sizes.get(axis, 1))  # axes behind '...' broadcast
            elif sizes.setdefault(axis, size) != size:
                given = _shown(shapes) + "".join(f", {name}={value}" for name, value in axes.items())
                raise ValueError(f"{pattern!r}: axis {axis} is {sizes[axis]} and {size} at once; given: {given}.")
    missing = [axis for axis in names if axis not in sizes]
    if missing:
        given = ", ".join(f"{axis}={size}" for axis, size in sizes.items()) or "nothing"
        raise ValueError(f"{pattern!r} also needs {', '.join(f'{axis}=…' for axis in missing)}; given: {given}.")
    return sizes


def _shown(shapes) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


# --- the order --------------------------------------------------------------------------------------------------------


def _volume(axes, sizes) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _label(axes, sizes) -> str:
    return " ".join(axis for axis in sizes if axis in axes) or "·"


def _sum_lone_axes(inputs, output, sizes):
    """Add up, in each operand, the axes that neither another operand nor the output has."""
    steps, operands = [], []
    for place, names in enumerate(inputs):
        elsewhere = set(output).union(*inputs[:place], *inputs[place + 1 :])
        axes, kept = frozenset(names), frozenset(names) & elsewhere
        if kept != axes:
            steps.append(EinsumStep((_label(axes, sizes),), _label(kept, sizes), "sum", _volume(axes, sizes)))
        operands.append(kept)
    return steps, operands


def _product(a, b, needed, sizes) -> tuple[frozenset, EinsumStep]:
    """Multiply two operands and sum the axes that are not needed later."""
    every = a | b
    kept = every & needed
    kind, factor = ("matmul", 2) if kept != every else ("multiply", 1)
    inputs = (_label(a, sizes), _label(b, sizes))
    return kept, EinsumStep(inputs, _label(kept, sizes), kind, factor * _volume(every, sizes))


def _left_to_right(operands, output, sizes) -> list[EinsumStep]:
    steps, done = [], operands[0]
    for place, operand in enumerate(operands[1:], start=2):
        needed = frozenset(output).union(*operands[place:])
        done, step = _product(done, operand, needed, sizes)
        steps.append(step)
    return steps


@cache
def _cheapest(operands, output, size_items) -> tuple[int, tuple[EinsumStep, ...]]:
    """The cheapest tree of pairwise products, by dynamic programming over subsets of the operands (bit masks)."""
    sizes, count = dict(size_items), len(operands)
    everything = (1 << count) - 1
    axes_of, best = {}, {}
    for subset in range(1, everything + 1):
        members = [i for i in range(count) if subset >> i & 1]
        if len(members) == 1:
            axes_of[subset], best[subset] = operands[members[0]], (0, ())
            continue
        needed = output.union(*(operands[i] for i in range(count) if not subset >> i & 1))
        part = (subset - 1) & subset
        while part:
            other = subset ^ part
            if part > other:  # each split once
                kept, step = _product(axes_of[part], axes_of[other], needed, sizes)
                cost = best[part][0] + best[other][0] + step.flops
                if subset not in best or cost < best[subset][0]:
                    axes_of[subset], best[subset] = kept, (cost, (*best[other][1], *best[part][1], step))
            part = (part - 1) & subset
    return best[everything]
