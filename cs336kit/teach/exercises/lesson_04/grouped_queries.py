"""Exercise 04.4: grouped queries."""

from einops import einsum, rearrange

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_04.tensors import numbers
from cs336kit.teach.exercises.lesson_04.wording import wrong


def _scores(q, k):
    grouped = rearrange(q, "b (k r) s h -> b k r s h", k=k.shape[1])
    return rearrange(einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


def _scores_tiled(q, k):
    """Head i uses key head i mod the number of key heads, where i // r is meant."""
    return einsum(q, k.repeat(1, q.shape[1] // k.shape[1], 1, 1), "b a s h, b a t h -> b a s t")


def _scores_transposed(q, k):
    return _scores(q, k).transpose(-2, -1)


def _scores_summed(q, k):
    return einsum(q, k, "b a s h, b k t h -> b a s t")


def _scores_ungrouped(q, k):
    return rearrange(_scores(q, k), "b (k r) s t -> b k r s t", k=k.shape[1])


def _scores_woven(q, k):
    grouped = rearrange(q, "b (r k) s h -> b k r s h", k=k.shape[1])
    return rearrange(einsum(grouped, k, "b k r s h, b k t h -> b k r s t"), "b k r s t -> b (k r) s t")


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
            args=(numbers(b, a, s, h), numbers(b, g, t, h)),
            label=f"{a} query heads, {g} key heads, {s} queries, {t} keys",
        )
        for b, a, g, s, t, h in shapes
    ]
    recorded = numbers(2, 4, 3, 2).requires_grad_(), numbers(2, 2, 5, 2).requires_grad_()
    return [*cases, Case(args=recorded, label="4 query heads, 2 key heads, and a look at the storage that was read")]


EXERCISE = Exercise(
    id="04.4",
    reference=_scores,
    cases=_grouped,
    mistakes=(
        wrong(
            _scores_tiled,
            "the shape is right and the numbers are not: neighbouring query heads share a key head (0 0 1 1), and yours "
            "take turns (0 1 0 1).",
        ),
        wrong(
            _scores_transposed,
            "queries and keys have changed places: scores have queries as rows, keys as columns.",
        ),
        wrong(
            _scores_summed,
            "the key heads were added up: in an einsum an axis of another name that is missing on the right is summed.",
        ),
        wrong(
            _scores_ungrouped,
            "the heads are still two axes, groups and members: merge them, (k r), to get one row per query head.",
        ),
        wrong(
            _scores_woven,
            "the shape is right and the numbers are not: you cut q as (r k), which puts heads that are far apart into one "
            "group. Neighbours share a key head: (k r).",
        ),
        wrong(
            _scores_with_copies,
            "the numbers are right, and k was copied for every query head. Cut the axis of q instead, so that one einsum "
            "names the key head in both.",
        ),
        wrong(
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
)
