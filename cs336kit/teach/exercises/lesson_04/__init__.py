"""Exercises of lesson 04, einops and jaxtyping."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def _wrong(answer, why):
    return Mistake(answer, "For {case} " + why)


def _numbers(*shape):
    import torch

    # Whole numbers: sums of them are exact in any order, so an answer is right to the last bit or wrong.
    size = 1
    for length in shape:
        size *= length
    return (torch.arange(size, dtype=torch.float64) * 7 % 23).reshape(shape)


def _rearrange(x, pattern, **axes):
    from einops import rearrange

    return rearrange(x, pattern, **axes)


def _reduce(x, pattern, mode, **axes):
    from einops import reduce

    return reduce(x, pattern, mode, **axes)


def _einsum(*arguments):
    from einops import einsum

    return einsum(*arguments)


# 04.1 · Windows -------------------------------------------------------------------------------------------------------


def _pool(x, window):
    return _reduce(x, "b (n w) d -> b n d", "mean", w=window)


def _windows():
    shapes = ((2, 6, 3, 2), (1, 8, 2, 4), (3, 12, 5, 3), (2, 4, 4, 4))
    return [Case(args=(_numbers(b, s, d), w), label=f"shape ({b}, {s}, {d}), window={w}") for b, s, d, w in shapes]


# 04.2 · Split the heads -----------------------------------------------------------------------------------------------


def _split(x, heads):
    return _rearrange(x, "b s (a h) -> b a s h", a=heads)


def _to_split():
    shapes = ((2, 3, 8, 2), (1, 5, 12, 3), (2, 4, 4, 1), (2, 4, 16, 4))
    cases = [Case(args=(_numbers(b, s, d), k), label=f"shape ({b}, {s}, {d}), heads={k}") for b, s, d, k in shapes]
    turned = _numbers(2, 6, 4).transpose(1, 2)
    return [*cases, Case(args=(turned, 3), label="a transposed (non-contiguous) tensor of shape (2, 4, 6), heads=3")]


# 04.3 · Merge the heads -----------------------------------------------------------------------------------------------


def _merge(x):
    return _rearrange(x, "b a s h -> b s (a h)")


def _to_merge():
    shapes = ((2, 2, 3, 4), (1, 3, 5, 2), (2, 4, 4, 4))
    cases = [Case(args=(_numbers(*shape),), label=f"shape {shape}") for shape in shapes]
    turned = _numbers(2, 3, 5, 2).transpose(1, 2)
    return [*cases, Case(args=(turned,), label="a transposed (non-contiguous) tensor of shape (2, 5, 3, 2)")]


# 04.4 · Grouped queries -----------------------------------------------------------------------------------------------


def _scores(q, k):
    grouped = _rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1])
    return _rearrange(_einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


def _scores_tiled(q, k):
    """Head i uses key head i mod the number of key heads, where i // r is meant."""
    return _einsum(q, k.repeat(1, q.shape[1] // k.shape[1], 1, 1), "b a s h, b a t h -> b a s t")


def _scores_transposed(q, k):
    return _scores(q, k).transpose(-2, -1)


def _scores_summed(q, k):
    return _einsum(q, k, "b a s h, b k t h -> b a s t")


def _scores_ungrouped(q, k):
    return _rearrange(_scores(q, k), "b (k r) s t -> b k r s t", k=k.shape[1])


def _scores_woven(q, k):
    grouped = _rearrange(q, "b (r k) s h -> b k r s h", k=k.shape[1])
    return _rearrange(_einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


def _scores_with_copies(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-2, -1)


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
    cases = [
        Case(
            args=(_numbers(b, a, s, h), _numbers(b, g, t, h)),
            label=f"{a} query heads, {g} key heads, {s} queries, {t} keys",
        )
        for b, a, g, s, t, h in shapes
    ]
    recorded = _numbers(2, 4, 3, 2).requires_grad_(), _numbers(2, 2, 5, 2).requires_grad_()
    return [*cases, Case(args=recorded, label="4 query heads, 2 key heads, and a look at the storage that was read")]


# 04.5 · The cheapest order --------------------------------------------------------------------------------------------


def _left(a, b, c, d):
    return 2 * a * b * c + 2 * a * c * d


def _right(a, b, c, d):
    return 2 * b * c * d + 2 * a * b * d


def _chain(a, b, c, d):
    return min(_left(a, b, c, d), _right(a, b, c, d))


def _chains():
    sizes = ((1024, 64, 1024, 64), (16, 64, 16, 64), (2, 3, 5, 7), (1, 512, 512, 512), (512, 512, 512, 1), (9, 2, 9, 9))
    return [Case(args=size, label="a={}, b={}, c={}, d={}".format(*size)) for size in sizes]


EXERCISES = (
    Exercise(
        id="04.1",
        reference=_pool,
        cases=_windows,
        mistakes=(
            _wrong(
                lambda x, window: _reduce(x, "b (w n) d -> b n d", "mean", w=window),
                "you averaged positions that are far apart: in (n w) the last name runs fastest, so windows need w last.",
            ),
            _wrong(
                lambda x, window: _reduce(x, "b (n w) d -> b n d", "sum", w=window),
                "you returned sums, and means were asked for.",
            ),
            _wrong(
                lambda x, window: x[:, ::window],
                "you returned the first position of each window, and dropped the others.",
            ),
            _wrong(
                lambda x, window: _reduce(x, "b (n w) d -> b n d", "max", w=window),
                "you returned the largest values, and means were asked for.",
            ),
            _wrong(
                lambda x, window: x.unfold(1, window, 1).mean(-1),
                "your windows overlap: each begins one position after the last, and should begin where the last ends.",
            ),
            _wrong(
                lambda x, window: _reduce(x, "b (n w) d -> b n d", "mean", n=window),
                "you made as many windows as each should have positions: window is the length w, not the number n.",
            ),
        ),
        hints=(
            "Which axis is to be cut in two, and which of the two parts disappears?",
            "reduce takes a pattern with a bracket on the left: (n w) cuts an axis into n windows of w neighbours.",
            'reduce(x, "b (n w) d -> b ___ d", "mean", w=window)',
        ),
        checked="windows of 2, 3, 4 and of the whole sequence.",
        tolerance=1e-12,
    ),
    Exercise(
        id="04.2",
        reference=_split,
        cases=_to_split,
        mistakes=(
            _wrong(
                lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1),
                "the shape is right and the numbers are not: reshape fills the axes in the order of memory and does not swap "
                "positions and heads.",
            ),
            _wrong(
                lambda x, heads: _rearrange(x, "b s (h a) -> b a s h", a=heads),
                "the shape is right and the numbers are not: in (h a) a head takes features that are far apart; "
                "a head is a block of neighbours, (a h).",
            ),
            _wrong(
                lambda x, heads: _rearrange(x, "b s (a h) -> b s a h", a=heads),
                "the heads are split and still stand behind the positions; attention wants batch, heads, positions, features.",
            ),
            _wrong(
                lambda x, heads: _rearrange(x, "b s (a h) -> a b s h", a=heads),
                "the heads stand before the batch; attention wants batch, heads, positions, features.",
            ),
            _wrong(
                lambda x, heads: _rearrange(x, "b s (a h) -> b a s h", h=heads),
                "you made heads of that many features; `heads` is the number of heads, the first name in the bracket.",
            ),
        ),
        hints=(
            "Two things happen: one axis becomes two, and two axes change places.",
            "One rearrange does both: a bracket on the left cuts the axis, the order on the right moves it.",
            'rearrange(x, "b s (a h) -> b ___ ___ h", a=heads)',
        ),
        checked="four shapes, one head among them, and a tensor that is not contiguous.",
        tolerance=0,
    ),
    Exercise(
        id="04.3",
        reference=_merge,
        cases=_to_merge,
        mistakes=(
            _wrong(
                lambda x: x.reshape(x.shape[0], x.shape[2], -1),
                "the shape is right and the numbers are not: reshape reads heads before positions; swap them first.",
            ),
            _wrong(
                lambda x: _rearrange(x, "b a s h -> b s (h a)"),
                "the shape is right and the numbers are not: you wove the heads together, and each should stay a block, (a h).",
            ),
            _wrong(
                lambda x: _rearrange(x, "b a s h -> b (a s) h"),
                "you merged heads with positions; heads are merged with features.",
            ),
            _wrong(
                lambda x: _rearrange(x, "b a s h -> b s a h"),
                "heads and positions have changed places, and heads and features are still two axes.",
            ),
            _wrong(
                lambda x: _rearrange(x, "b a s h -> s b (a h)"),
                "the positions stand before the batch; wanted are batch, positions, features.",
            ),
        ),
        hints=(
            "It undoes exercise 04.2: which bracket stood on the left there?",
            "Read the pattern of 04.2 from right to left.",
            'rearrange(x, "b a s h -> b s (___ h)")',
        ),
        checked="three shapes, and a tensor that is not contiguous.",
        tolerance=0,
    ),
    Exercise(
        id="04.4",
        reference=_scores,
        cases=_grouped,
        mistakes=(
            _wrong(
                _scores_tiled,
                "the shape is right and the numbers are not: neighbouring query heads share a key head (0 0 1 1), and yours "
                "take turns (0 1 0 1).",
            ),
            _wrong(
                _scores_transposed,
                "queries and keys have changed places: scores have queries as rows, keys as columns.",
            ),
            _wrong(
                _scores_summed,
                "the key heads were added up: in an einsum an axis of another name that is missing on the right is summed.",
            ),
            _wrong(
                _scores_ungrouped,
                "the heads are still two axes, groups and members: merge them, (k r), to get one row per query head.",
            ),
            _wrong(
                _scores_woven,
                "the shape is right and the numbers are not: you cut q as (r k), which puts heads that are far apart into one "
                "group. Neighbours share a key head: (k r).",
            ),
            _wrong(
                _scores_with_copies,
                "the numbers are right, and k was copied for every query head. Cut the axis of q instead, so that one einsum "
                "names the key head in both.",
            ),
            _wrong(
                lambda q, k: _scores(q, k) / q.shape[-1] ** 0.5,
                "you divided by the square root of h; the plain dot products were asked for.",
            ),
        ),
        hints=(
            "Query heads 0 … r-1 use key head 0, the next r use key head 1. Which pattern cuts the axis that way?",
            "Cut the query heads into (k r), multiply with an einsum that has k in both operands and r in one, merge again.",
            'einsum(rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1]), k, "b k r s h, b k t h -> b k r s ___")',
        ),
        checked="two, three and one key head, as many key heads as query heads, other numbers of keys than queries, and that "
        "k was not copied.",
        observe=_used_k,
        tolerance=0,
    ),
    Exercise(
        id="04.5",
        reference=_chain,
        cases=_chains,
        mistakes=(
            _wrong(_left, "you returned {given}, the order (x y) z; the other order costs {expected}."),
            _wrong(_right, "you returned {given}, the order x (y z); the other order costs {expected}."),
            _wrong(
                lambda a, b, c, d: _chain(a, b, c, d) // 2,
                "you returned {given}, half of it: a multiply and an add are two FLOPs.",
            ),
            _wrong(
                lambda a, b, c, d: 2 * a * b * c * d,
                "you returned {given}, a product of all four sizes: two products in a row need a sum of two such terms.",
            ),
            _wrong(
                lambda a, b, c, d: max(_left(a, b, c, d), _right(a, b, c, d)),
                "you returned {given}, the dearer of the two orders; {expected} is the cheaper.",
            ),
            _wrong(
                lambda a, b, c, d: 2 * min(a * b * c, b * c * d) + 2 * min(a * c * d, a * b * d),
                "you returned {given}: you took the cheaper product of each step, and the first choice fixes the second.",
            ),
            _wrong(
                lambda a, b, c, d: min(_left(a, b, c, d), 2 * b * c * d + 2 * a * c * d),
                "you returned {given}: after y z, of b × d, comes a × b times b × d, which costs 2·a·b·d.",
            ),
            _wrong(
                lambda a, b, c, d: 2 * min(a * b * c, b * c * d),
                "you returned {given}, only the first product of the cheaper start; add the second.",
            ),
        ),
        hints=(
            "There are two orders. What is the shape of what stands in the middle in each?",
            "A product of a × b with b × c costs 2·a·b·c FLOPs and leaves a × c.",
            "min(2*a*b*c + 2*a*c*d, 2*b*c*d + ___)",
        ),
        checked="six chains, attention with long and with short sequences among them.",
    ),
)
