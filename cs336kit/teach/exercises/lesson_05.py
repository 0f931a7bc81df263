"""Exercises of lesson 05: einops and jaxtyping."""

import math

import torch
from einops import einsum, rearrange, reduce

from cs336kit.teach.exercises.core import exercise


def _numbers(*shape):
    """0, 7, 14, 21, 5, … in float64, every number from 0 to 22 in turn: whole, so that sums are exact in any order."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) * 7 % 23).reshape(shape)


@exercise(
    "05.1",
    cases=lambda: {
        f"shape ({b}, {s}, {d}), window={w}": (_numbers(b, s, d), w)
        for b, s, d, w in ((2, 6, 3, 2), (1, 8, 2, 4), (3, 12, 5, 3), (2, 4, 4, 4))
    },
    mistakes={
        "reduce(x, 'b (w n) d -> b n d', 'mean', w=window)": "you averaged positions that are far apart: windows need w last.",
        "right * window": "these are sums, and means were asked for.",
        "x[:, ::window]": "this is the first position of each window, and the others are dropped.",
        "reduce(x, 'b (n w) d -> b n d', 'max', w=window)": "these are the largest values, and means were asked for.",
        "x.unfold(1, window, 1).mean(-1)": "your windows overlap: each should begin where the last ends.",
        "reduce(x, 'b (n w) d -> b n d', 'mean', n=window)": "window is the length w of each, not their number n.",
    },
    hints=(
        "Which axis is to be cut in two, and which of the two parts disappears?",
        "reduce takes a pattern with a bracket on the left: (n w) cuts an axis into n windows of w neighbours.",
        'reduce(x, "b (n w) d -> b ___ d", "mean", w=window)',
    ),
    checked="windows of 2, 3, 4 and of the whole sequence.",
    tolerance=1e-12,
)
def pool(x, window):
    return reduce(x, "b (n w) d -> b n d", "mean", w=window)


@exercise(
    "05.2",
    cases=lambda: {
        "shape (2, 3, 8), heads=2": (_numbers(2, 3, 8), 2),
        "shape (1, 5, 12), heads=3": (_numbers(1, 5, 12), 3),
        "shape (2, 4, 4), heads=1": (_numbers(2, 4, 4), 1),
        "shape (2, 4, 16), heads=4": (_numbers(2, 4, 16), 4),
        "a transposed (non-contiguous) tensor of shape (2, 4, 6), heads=3": (_numbers(2, 6, 4).transpose(1, 2), 3),
    },
    mistakes={
        "x.reshape(x.shape[0], heads, x.shape[1], -1)": "reshape fills the axes in the order of memory and swaps nothing.",
        "rearrange(x, 'b s (h a) -> b a s h', a=heads)": "a head is a block of neighbouring features, (a h).",
        "right.transpose(1, 2)": "the heads still stand behind the positions; wanted are batch, heads, positions, features.",
        "right.transpose(0, 1)": "the heads stand before the batch; wanted are batch, heads, positions, features.",
        "rearrange(x, 'b s (a h) -> b a s h', h=heads)": "`heads` is the number of heads, the first name in the bracket.",
    },
    hints=(
        "Two things happen: one axis becomes two, and two axes change places.",
        "One rearrange does both: a bracket on the left cuts the axis, the order on the right moves it.",
        'rearrange(x, "b s (a h) -> b ___ ___ h", a=heads)',
    ),
    checked="four shapes, one head among them, and a tensor that is not contiguous.",
    tolerance=0,
)
def split(x, heads):
    return rearrange(x, "b s (a h) -> b a s h", a=heads)


@exercise(
    "05.3",
    cases=lambda: {
        "shape (2, 2, 3, 4)": (_numbers(2, 2, 3, 4),),
        "shape (1, 3, 5, 2)": (_numbers(1, 3, 5, 2),),
        "shape (2, 4, 4, 4)": (_numbers(2, 4, 4, 4),),
        "a transposed (non-contiguous) tensor of shape (2, 5, 3, 2)": (_numbers(2, 3, 5, 2).transpose(1, 2),),
    },
    mistakes={
        "x.reshape(x.shape[0], x.shape[2], -1)": "reshape reads heads before positions; swap them first.",
        "rearrange(x, 'b a s h -> b s (h a)')": "you wove the heads together, and each should stay a block, (a h).",
        "rearrange(x, 'b a s h -> b (a s) h')": "you merged heads with positions; heads are merged with features.",
        "x.transpose(1, 2)": "heads and features are still two axes.",
        "right.transpose(0, 1)": "the positions stand before the batch; wanted are batch, positions, features.",
    },
    hints=(
        "It undoes exercise 04.2: which bracket stood on the left there?",
        "Read the pattern of 04.2 from right to left.",
        'rearrange(x, "b a s h -> b s (___ h)")',
    ),
    checked="three shapes, and a tensor that is not contiguous.",
    tolerance=0,
)
def merge(x):
    return rearrange(x, "b a s h -> b s (a h)")


def _used_k(result, args):
    """The result; where k wants a gradient, whether the products read k's own storage: they save what they read."""
    k = args[1]
    if not k.requires_grad or result.grad_fn is None:
        return result
    todo, seen = [result.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = (getattr(node, name) for name in dir(node) if name.startswith("_saved_"))
        if any(getattr(value, "data_ptr", int)() == k.data_ptr() for value in saved):
            return "read k itself"
        todo += [following for following, _ in node.next_functions]
    return "read a copy of k"


def _grouped():
    shapes = ((2, 4, 2, 3, 5, 2), (1, 6, 3, 2, 4, 3), (2, 6, 2, 3, 3, 2), (2, 2, 2, 3, 4, 2), (1, 4, 1, 3, 3, 2))
    cases = {
        f"{a} query heads, {g} key heads, {s} queries, {t} keys": (_numbers(b, a, s, h), _numbers(b, g, t, h))
        for b, a, g, s, t, h in shapes
    }
    recorded = _numbers(2, 4, 3, 2).requires_grad_(), _numbers(2, 2, 5, 2).requires_grad_()
    return {**cases, "4 query heads, 2 key heads, and a look at the storage that was read": recorded}


@exercise(
    "05.4",
    cases=_grouped,
    mistakes={
        "q @ k.repeat(1, q.shape[1] // k.shape[1], 1, 1).mT": "your heads take turns (0 1 0 1); neighbours share a key "
        "head (0 0 1 1).",
        "right.mT": "scores have queries as rows, keys as columns, and yours have changed places.",
        "einsum(q, k, 'b a s h, b k t h -> b a s t')": "the key heads were added up: an axis missing on the right is summed.",
        "rearrange(right, 'b (k r) s t -> b k r s t', k=k.shape[1])": "groups and members are still two axes: merge them, (k r).",
        "q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT": "right numbers, but k was copied: cut the axis of q instead.",
        "right / q.shape[-1] ** 0.5": "you divided by the square root of h; the plain dot products were asked for.",
    },
    hints=(
        "Query heads 0 … r-1 use key head 0, the next r use key head 1. Which pattern cuts the axis that way?",
        "Cut the query heads into (k r), multiply with an einsum that has k in both operands and r in one, merge again.",
        'einsum(rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1]), k, "b k r s h, b k t h -> b k r s ___")',
    ),
    checked="two, three and one key head, as many key heads as query heads, other numbers of keys than queries, and that "
    "k was not copied.",
    observe=_used_k,
    tolerance=0,
)
def scores(q, k):
    grouped = rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1])
    return rearrange(einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


_CHAINS = ((1024, 64, 1024, 64), (16, 64, 16, 64), (2, 3, 5, 7), (1, 512, 512, 512), (512, 512, 512, 1), (9, 2, 9, 9))


@exercise(
    "05.5",
    cases={"a={}, b={}, c={}, d={}".format(*sizes): sizes for sizes in _CHAINS},
    mistakes={
        "2 * a * c * (b + d)": "this is the order (x y) z, and the other one costs less.",
        "2 * b * d * (a + c)": "this is the order x (y z), and the other one costs less.",
        "right // 2": "half of it: a multiply and an add are two FLOPs.",
        "2 * a * b * c * d": "a product of all four sizes; two products in a row need a sum of two such terms.",
        "2 * max(a * c * (b + d), b * d * (a + c))": "the dearer of the two orders.",
        "2 * min(a * b * c, b * c * d) + 2 * min(a * c * d, a * b * d)": "your first choice already fixes the second product.",
    },
    hints=(
        "There are two orders. What is the shape of what stands in the middle in each?",
        "A product of a × b with b × c costs 2·a·b·c FLOPs and leaves a × c.",
        "min(2*a*b*c + 2*a*c*d, 2*b*c*d + ___)",
    ),
    checked="six chains, attention with long and with short sequences among them.",
)
def chain(a, b, c, d):
    return 2 * min(a * c * (b + d), b * d * (a + c))
