"""Claims about einsum, reduce, rearrange and jaxtyping."""

import itertools
from importlib.util import find_spec

import torch
from beartype import beartype
from claims.settled import outcome_of, settles
from einops import einsum, rearrange, reduce
from jaxtyping import Float, jaxtyped
from torch import Tensor

from cs336kit import measure, predict


def whole_numbers(*shape, seed=0):
    """Small whole numbers as floats: their sums are exact in any order."""
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


X, Y = whole_numbers(2, 3, 4), whole_numbers(2, 3, 4, seed=1)
SPLIT = "... (heads hidden1) -> ... heads hidden1"
PER_HEAD = "... hidden1, hidden1 hidden2 -> ... hidden2"
MERGE = "... heads hidden2 -> ... (heads hidden2)"
Heads = Float[Tensor, "batch seq heads hidden"]


def by_loop(x, y):
    """Every named index in a loop; what the result does not name is added up."""
    out = torch.zeros(2, 3, 3)
    for batch, seq1, seq2, hidden in itertools.product(range(2), range(3), range(3), range(4)):
        out[batch, seq1, seq2] += x[batch, seq1, hidden] * y[batch, seq2, hidden]
    return out.tolist()


@settles("einsum-batched")
def test_einsum_batched():
    scores = einsum(X, Y, "batch seq1 hidden, batch seq2 hidden -> batch seq1 seq2")
    return (X @ Y.transpose(-2, -1)).tolist(), scores.tolist()


@settles("einsum-argument-order")
def test_einsum_argument_order():
    in_einops = outcome_of(lambda: einsum(X, Y, "b s h, b t h -> b s t"))
    return "runs", in_einops, outcome_of(lambda: torch.einsum(X, Y, "bsh,bth->bst"))


@settles("einsum-ellipsis")
def test_einsum_ellipsis():
    return by_loop(X, Y), einsum(X, Y, "... seq1 hidden, ... seq2 hidden -> ... seq1 seq2").tolist()


@settles("einsum-missing-quote")
def test_einsum_missing_quote():
    printed = 'einsum(x, y, "... seq1 hidden, ... seq2 hidden -> ... seq1 seq2)'
    return "runs", outcome_of(lambda: compile(printed, "notes", "eval"))


@settles("einsum-stray-comma")
def test_einsum_stray_comma():
    return "runs", outcome_of(lambda: einsum(X, Y, "..., seq1 hidden, ... hidden -> ... seq1 seq2"))


@settles("einsum-unnamed-summed")
def test_einsum_unnamed_summed():
    return by_loop(X, Y), einsum(X, Y, "batch seq1 hidden, batch seq2 hidden -> batch seq1 seq2").tolist()


@settles("reduce-sum")
def test_reduce_sum():
    return X.sum(-1).tolist(), reduce(X, "... hidden -> ...", "sum").tolist()


@settles("reduce-mean-vs-sum")
def test_reduce_mean_vs_sum():
    return X.mean(-1).tolist(), reduce(X, "... hidden -> ...", "sum").tolist()


@settles("reduce-modes")
def test_reduce_modes():
    by_torch = [X.sum(-1), X.mean(-1), X.amax(-1), X.amin(-1)]
    modes = [reduce(X, "... hidden -> ...", mode) for mode in ("sum", "mean", "max", "min")]
    return [t.tolist() for t in by_torch], [t.tolist() for t in modes]


@settles("rearrange-split-heads")
def test_rearrange_split_heads():
    z = whole_numbers(2, 3, 8)
    split = rearrange(z, SPLIT, heads=2)
    assert split.tolist() == z.view(2, 3, 2, 4).tolist()
    return (2, 3, 2, 4), tuple(split.shape)


@settles("rearrange-split-comma")
def test_rearrange_split_comma():
    return "runs", outcome_of(lambda: rearrange(whole_numbers(2, 3, 8), SPLIT.replace("...", "...,", 1), heads=2))


@settles("einsum-per-head-w")
def test_einsum_per_head_w():
    x, w = whole_numbers(2, 3, 2, 4), whole_numbers(4, 4, seed=1)
    mixed = einsum(x, w, PER_HEAD)
    return ((2, 3, 2, 4), (x @ w).tolist()), (tuple(mixed.shape), mixed.tolist())


@settles("einsum-per-head-w-comma")
def test_einsum_per_head_w_comma():
    x, w = whole_numbers(2, 3, 2, 4), whole_numbers(4, 4, seed=1)
    return "runs", outcome_of(lambda: einsum(x, w, PER_HEAD.replace("...", "...,", 1)))


@settles("rearrange-merge-heads")
def test_rearrange_merge_heads():
    x = whole_numbers(2, 3, 2, 4)
    merged = rearrange(x, MERGE)
    return ((2, 3, 8), x.flatten(-2).tolist()), (tuple(merged.shape), merged.tolist())


@settles("rearrange-merge-comma")
def test_rearrange_merge_comma():
    return "runs", outcome_of(lambda: rearrange(whole_numbers(2, 3, 2, 4), "..., heads hidden2 -> (heads hidden2)"))


@settles("rearrange-fancy-view")
def test_rearrange_fancy_view():
    z = whole_numbers(2, 3, 8)
    return True, *(measure.same_storage(rearrange(z, p), z) for p in ("b s d -> b d s", "b s d -> b (d s)"))


@settles("einsum-auto-optimised")
def test_einsum_auto_optimised():
    # (q k) v: with two operands there is one order; with three torch goes from left to right without opt_einsum.
    pattern, shapes = "s h, t h, t d -> s d", [(1024, 64)] * 3
    operands = [torch.empty(shape, device="meta") for shape in shapes]

    def flops(*tensors, pattern, optimized):
        with torch.backends.opt_einsum.flags(enabled=optimized and torch.backends.opt_einsum.is_available()):
            return measure.flops(lambda: einsum(*tensors, pattern)).total

    two = flops(*operands[:2], pattern="s h, t h -> s t", optimized=False)
    best_of_two = predict.einsum_flops("s h, t h -> s t", *shapes[:2], order="best")
    three = flops(*operands, pattern=pattern, optimized=False)
    return True, two == best_of_two, three == predict.einsum_flops(pattern, *shapes, order="best")


@settles("jaxtyping-name")
def test_jaxtyping_name():
    return True, find_spec("jax_typing") is not None


@settles("jaxtyping-four-dims")
def test_jaxtyping_four_dims():
    return True, isinstance(torch.ones(2, 2, 1, 3), Heads)


@settles("jaxtyping-three-dims")
def test_jaxtyping_three_dims():
    return True, isinstance(torch.ones(2, 1, 3), Heads)


@settles("jaxtyping-no-enforcement")
def test_jaxtyping_no_enforcement():
    def first(x: Heads) -> Heads:
        return x

    wrong = torch.ones(2, 1, 3)
    return "runs", outcome_of(lambda: first(wrong)), outcome_of(lambda: jaxtyped(typechecker=beartype)(first)(wrong))
