"""Exercises of lesson 05: einops, the order of products, and names that are checked."""

import itertools
import math

import torch
from einops import einsum, rearrange

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise


def _numbers(*shape):
    """0, 7, 14, 21, 5, … in float64, every number from 0 to 22 in turn: whole, so that sums are exact in any order."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) * 7 % 23).reshape(shape)


@exercise(
    "05.1",
    cases=lambda: {
        f"shape ({b}, {rows}, {columns}, {c}), p={p}": (_numbers(b, rows, columns, c), p)
        for b, rows, columns, c, p in ((2, 4, 6, 3, 2), (1, 9, 3, 2, 3), (3, 4, 8, 1, 2), (1, 6, 4, 3, 1))
    },
    mistakes={
        "images.reshape(len(images), -1, p * p * images.shape[-1])": "reshape follows the strip, so these are pieces of "
        "single lines of the image. A patch takes p pixels from each of p lines.",
        "rearrange(images, 'b (p i) (q j) c -> b (i j) (p q c)', p=p, q=p)": "the pixels of your patches are far apart. "
        "The last name in a bracket runs fastest, and neighbors should share a patch.",
        "rearrange(images, 'b (i p) (j q) c -> b (j i) (p q c)', p=p, q=p)": "your patches go down the image first; "
        "they should go along the first row of patches, then along the second.",
        "rearrange(images, 'b (i p) (j q) c -> b (i j) (q p c)', p=p, q=p)": "within a patch you go down first; the "
        "pixels of its first line should come first.",
        "rearrange(images, 'b (i p) (j q) c -> b (i j) (c p q)', p=p, q=p)": "you put one color of the whole patch after the "
        "other, but the colors of a pixel should stay together.",
        "right.transpose(1, 2)": "in your result each column is a patch, but each row should be one.",
    },
    hints=(
        "An image of 4 × 6 pixels and p = 2 has 2 × 3 patches. Two axes of the input are cut. Into which parts?",
        "Five names on the left besides the batch: where the patch is, down and along, where the pixel is in it, down and "
        "along, and the color. On the right, one bracket collects what says which patch, the other what is in it.",
    ),
    checked="patches of 2 × 2, 3 × 3 and single pixels, images that are tall and images that are wide.",
    tolerance=0,
)
def patches(images, p):
    return rearrange(images, "b (i p) (j q) c -> b (i j) (p q c)", p=p, q=p)


def _lone_axes_forgotten(first, second, output, x, y):
    used = {*output} | ({*first} & {*second})
    ends = [tuple(slice(None if name in used else 1) for name in names) for names in (first, second)]
    return multiply(first, second, output, x[ends[0]], y[ends[1]])


_PATTERNS = {
    "scores (b s h, b t h -> b s t)": ("bsh", "bth", "bst", (2, 3, 4), (2, 5, 4)),
    "a matrix product (m k, k n -> m n)": ("mk", "kn", "mn", (2, 3), (3, 4)),
    "the same, transposed (m k, k n -> n m)": ("mk", "kn", "nm", (2, 3), (3, 4)),
    "an outer product (i, j -> j i)": ("i", "j", "ji", (3,), (4,)),
    "a single number (s h, s h -> )": ("sh", "sh", "", (3, 2), (3, 2)),
    "names that only one operand has (b s h, t h -> b t)": ("bsh", "th", "bt", (2, 3, 4), (5, 4)),
    "a diagonal (s s, s -> s)": ("ss", "s", "s", (3, 3), (3,)),
}


@exercise(
    "05.2",
    cases=lambda: {
        label: (tuple(left), tuple(right), tuple(output), _numbers(*shape).float(), _numbers(*other).float() - 8)
        for label, (left, right, output, shape, other) in _PATTERNS.items()
    },
    mistakes={
        "right_if(add=False)": "each cell keeps only its last product. Add up its products.",
        _lone_axes_forgotten: "you loop over a name only if the result or both operands have it. Loop over every name.",
        "right_if(output=tuple(name for name in dict.fromkeys(first + second) if name in output))": "the axes of your result "
        "are in the order in which the names appear, but `output` gives the order.",
    },
    hints=(
        "First find out how large each name is. Which names does your loop run over, and what is the shape of the result?",
        "itertools.product over the ranges of all names gives one number for each name at a time. A dictionary from name "
        "to number then picks the place in x, in y and in the result.",
    ),
    checked="scores, matrix products, an outer product, a single number, names that only one operand has, a diagonal.",
    avoid=("einsum", "matmul", "mm", "bmm", "mv", "dot", "tensordot", "inner", "outer"),
    tolerance=0,
)
def multiply(first, second, output, x, y, *, add=True):
    sizes = dict(zip(first + second, (*x.shape, *y.shape), strict=True))
    result = torch.zeros([sizes[name] for name in output], dtype=x.dtype)
    for place in itertools.product(*map(range, sizes.values())):
        at = dict(zip(sizes, place, strict=True))
        cell = tuple(at[name] for name in output)
        term = x[tuple(at[name] for name in first)] * y[tuple(at[name] for name in second)]
        result[cell] = result[cell] + term if add else term
    return result


def _used_k(result, args):
    """The result; where k wants a gradient, whether the products read k's own storage: they save what they read."""
    k = args[1]
    if not k.requires_grad or result.grad_fn is None:
        return result
    nodes = measure.graph(result, names={"k": k}).nodes
    return "read k itself" if any(kept.tensor == "k" for node in nodes for kept in node.saved) else "read a copy of k"


def _grouped():
    shapes = ((2, 4, 2, 3, 5, 2), (1, 6, 3, 2, 4, 3), (2, 6, 2, 3, 3, 2), (2, 2, 2, 3, 4, 2), (1, 4, 1, 3, 3, 2))
    cases = {
        f"{a} query heads, {g} key heads, {s} queries, {t} keys": (_numbers(b, a, s, h), _numbers(b, g, t, h))
        for b, a, g, s, t, h in shapes
    }
    recorded = _numbers(2, 4, 3, 2).requires_grad_(), _numbers(2, 2, 5, 2).requires_grad_()
    return {**cases, "4 query heads, 2 key heads, and a look at the storage that was read": recorded}


@exercise(
    "05.3",
    cases=_grouped,
    mistakes={
        "q @ k.repeat(1, q.shape[1] // k.shape[1], 1, 1).mT": "your heads take turns (0 1 0 1), and neighbors should share "
        "a key head (0 0 1 1).",
        "right.mT": "scores have a row for each query and a column for each key, but yours have it the other way round.",
        "einsum(q, k, 'b a s h, b k t h -> b a s t')": "you added up the key heads, because their name is missing on the right.",
        "rearrange(right, 'b (k r) s t -> b k r s t', k=k.shape[1])": "groups and their members are still two axes. Join them.",
        "q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT": "the numbers are right, but you copied k. Could q be split "
        "instead?",
        "right / q.shape[-1] ** 0.5": "you divided by the square root of h, but the task asks for the plain dot products.",
    },
    hints=(
        "Query heads 0 … r − 1 use key head 0, and the next r use key head 1. So a query head has two numbers: its group "
        "and its place in the group. Which of them runs fastest?",
        "Take three steps: give q one more axis, take the products with an einsum in which the group appears in both operands, "
        "and join the two axes again.",
    ),
    checked="two, three and one key head, as many key heads as query heads, other numbers of keys than queries, and that "
    "k was not copied.",
    observe=_used_k,
    tolerance=0,
)
def scores(q, k):
    grouped = rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1])
    return rearrange(einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


@exercise(
    "05.4",
    mistakes={
        "('B', ..., ...)": "for 16 queries the scores are a thin table. B takes all keys times all values first, however few "
        "the queries are.",
        "(..., 'A', ...)": "with 4,096 queries the scores are a table of 4,096 × 4,096. What does B have in their place?",
        "('A', 'B', 65)": "that is right for as many keys as queries. Here all 4,096 keys are there, even for a single query.",
        "('A', 'B', 64)": "that is where the two orders meet for as many keys as queries. Here the keys are always 4,096.",
        "('A', 'B', 32)": "you counted one product of B, but its table then meets every query. Set the sums of both products "
        "against each other.",
    },
    hints=(
        "Each order has two products, and each product loops over three of the four names s, t, h and d. Write down the sizes.",
        "In A the number of queries is in both products, in B it is in one of the two. For how many are the two sums equal?",
    ),
    checked="A takes 4,096 · 128 turns for each query. B takes 64² · 4,096 for the keys and values, and 64² for each query.",
)
def order():
    return "A", "B", 33


def _stretched(names, shape, known):
    words, found = names.split(), dict(known)
    for word, size in zip(words, shape, strict=False):
        before = found.get(word, size)
        if before != size and 1 not in (before, size):
            return None
        found[word] = max(before, size)
    return found if len(words) == len(shape) else None


def _in_place(names, shape, known):
    found = bind(names, shape, known)
    known.update(found or {})
    return found


@exercise(
    "05.5",
    cases={
        "'batch seq', a shape of (2, 3), nothing known": ("batch seq", (2, 3), {}),
        "'batch seq', a shape of (2, 3), batch=2 and width=8 known": ("batch seq", (2, 3), {"batch": 2, "width": 8}),
        "'batch seq', a shape of (2, 3), batch=5 known": ("batch seq", (2, 3), {"batch": 5}),
        "'batch seq', a shape of (1, 5), batch=2 known": ("batch seq", (1, 5), {"batch": 2}),
        "'batch seq', a shape of (2, 3, 4)": ("batch seq", (2, 3, 4), {}),
        "'batch seq width', a shape of (2, 3)": ("batch seq width", (2, 3), {}),
        "'seq seq', a shape of (3, 3)": ("seq seq", (3, 3), {}),
        "'seq seq', a shape of (3, 4)": ("seq seq", (3, 4), {}),
        "'', a shape of (), seq=3 known": ("", (), {"seq": 3}),
        "'', a shape of (), nothing known": ("", (), {}),
        "'batch', a shape of (3,), batch=0 known": ("batch", (3,), {"batch": 0}),
    },
    mistakes={
        "right_if(count=False)": "there are more axes than names, or fewer, so it does not fit.",
        "right_if(held=False)": "a name already had a size and got a different one. That does not fit.",
        "right_if(twice=False)": "the same name appears twice with two different sizes. That does not fit.",
        _stretched: "a size of 1 fits no other size here. That it would be stretched is what this check is to find.",
        "right and {word: right[word] for word in names.split()}": "you lost the sizes that were known before, and the next "
        "tensor is to be checked against them.",
        _in_place: "you changed the dictionary `known`. Return a new one.",
        "right is not None": "return the sizes of all names, so that they can be handed on, or None.",
    },
    hints=(
        "Three things can go wrong: the number of axes, a size that was known before, and a name that appears twice. Two of them "
        "are the same thing, if you note each size as soon as you see it.",
        "Begin with a copy of `known`, and go through names and sizes side by side.",
    ),
    checked="new and known names, too many and too few axes, a name that stands there twice, and that `known` is left alone.",
    observe=lambda result, args: {"result": result, "known": args[2]},
)
def bind(names, shape, known, *, count=True, held=True, twice=True):
    words, found = names.split(), dict(known)
    if count and len(words) != len(shape):
        return None
    for word, size in zip(words, shape, strict=False):
        before = (found if twice else known).get(word, size)
        if held and before != size:
            return None
        found[word] = size
    return found
