import itertools
import math
import sys
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from cs336kit.predict.einsum import einsum_flops

pytestmark = pytest.mark.torch

SIZES = dict(zip("abcdefg", (2, 3, 5, 7, 4, 6, 3), strict=True))


@st.composite
def patterns(draw, most_operands=3, least_operands=1):
    operands = draw(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=3, unique=True),
                             min_size=least_operands, max_size=most_operands))  # fmt: skip
    there = sorted({axis for operand in operands for axis in operand})
    output = draw(st.lists(st.sampled_from(there), unique=True, max_size=3))
    return operands, output


def spaced(operands, output):
    return f"{', '.join(' '.join(names) for names in operands)} -> {' '.join(output)}"


def used(operands):
    return {axis: SIZES[axis] for names in operands for axis in names}


def by_torch(operands, output):
    tensors = [torch.ones([SIZES[a] for a in names]) for names in operands]
    pattern = ",".join("".join(names) for names in operands) + "->" + "".join(output)
    with FlopCounterMode(display=False) as counter:
        torch.einsum(pattern, *tensors)
    return counter.get_total_flops()


def loop_multiplications(operands, output):
    """Run the definition, one index at a time: every combination of axes multiplies and adds once."""
    axes = sorted({axis for names in operands for axis in names})
    return sum(1 for _ in itertools.product(*(range(SIZES[a]) for a in axes)))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(patterns())
def test_matrix_products_equal_torchs_counter(drawn):
    operands, output = drawn
    with torch.backends.opt_einsum.flags(enabled=False) if torch.backends.opt_einsum.is_available() else nullcontext():
        assert einsum_flops(spaced(operands, output), **used(operands)).matmul == by_torch(operands, output)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(patterns(2, least_operands=2))
def test_two_operands_equal_the_count_by_hand(drawn):
    operands, output = drawn
    a, b = map(set, operands)
    lone = [(a, a - b - set(output)), (b, b - a - set(output))]
    hand = sum(math.prod(SIZES[x] for x in axes) for axes, gone in lone if gone)
    rest = (a | b) - lone[0][1] - lone[1][1]
    hand += (2 if rest - set(output) else 1) * math.prod(SIZES[x] for x in rest)
    flops = einsum_flops(spaced(operands, output), **used(operands))
    assert flops == flops.total == hand == sum(step.flops for step in flops.steps)
    if not lone[0][1] and not lone[1][1] and rest - set(output):
        assert flops == 2 * loop_multiplications(operands, output)


def cheapest_by_trying_all(operands, output):
    """Every order of pairwise products, tried one after another."""
    if len(operands) == 1:
        return 0
    costs = []
    for i, j in itertools.combinations(range(len(operands)), 2):
        rest = [names for place, names in enumerate(operands) if place not in (i, j)]
        every = operands[i] | operands[j]
        kept = every & set(output).union(*rest)
        step = (2 if kept != every else 1) * math.prod(SIZES[a] for a in every)
        costs.append(step + cheapest_by_trying_all([*rest, kept], output))
    return min(costs)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(patterns(5))
def test_best_order_equals_trying_all_orders(drawn):
    operands, output = drawn
    sets = [set(names) for names in operands]
    alone = [s - set(output).union(*sets[:i], *sets[i + 1 :]) for i, s in enumerate(sets)]
    sums = sum(math.prod(SIZES[a] for a in s) for s, gone in zip(sets, alone, strict=True) if gone)
    best = einsum_flops(spaced(operands, output), order="best", **used(operands))
    assert best == sums + cheapest_by_trying_all([s - gone for s, gone in zip(sets, alone, strict=True)], output)
    assert best <= einsum_flops(spaced(operands, output), **used(operands))


def test_known_patterns():
    assert einsum_flops("b s d, d f -> b s f", b=2, s=3, d=4, f=5) == 2 * 2 * 3 * 4 * 5
    assert einsum_flops("bsd,df->bsf", b=2, s=3, d=4, f=5) == 240
    assert einsum_flops("b s1 d, b s2 d -> b s1 s2", (2, 8, 4), (2, 6, 4)) == 2 * 2 * 8 * 6 * 4
    assert einsum_flops("... d, d f -> ... f", (7, 2, 4), (4, 5)) == 2 * 7 * 2 * 4 * 5
    assert einsum_flops("...ij,...jk->...ik", (3, 1, 2, 4), (3, 1, 4, 5)) == 2 * 3 * 2 * 4 * 5
    assert einsum_flops("...ij,...jk->...ik", (3, 1, 2, 4), (1, 5, 4, 6)) == 2 * 3 * 5 * 2 * 4 * 6
    assert einsum_flops("batch,batch->", batch=9) == einsum_flops("batch,batch->", (9,), (9,)) == 18
    assert einsum_flops("i,i->", torch.ones(5).shape, torch.ones(5).shape) == 10
    assert einsum_flops("i, j -> i j", i=3, j=4) == 12 and einsum_flops("i j -> i", i=3, j=4) == 12
    assert einsum_flops("i j -> j i", i=3, j=4) == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [((7, 3, 4, 5), (3, 5, 6)), ((3, 4, 5), (7, 3, 5, 6)), ((2, 7, 3, 4, 5), (1, 3, 5, 6)), ((3, 4, 5), (7, 1, 5, 6))],
)
def test_axes_behind_dots_meet_as_torch_broadcasts_them(left, right):
    product = torch.einsum("...ij,...jk->...ik", torch.empty(left, device="meta"), torch.empty(right, device="meta"))
    assert einsum_flops("...ij,...jk->...ik", left, right) == 2 * product.numel() * left[-1]


def test_letters_are_axes_unless_sizes_or_shapes_say_that_words_are():
    # A word of the caller's sizes is an axis; so are all words where one space stands, or where each shape has one axis.
    assert einsum_flops("ij,k->ij", ij=2, k=3) == 3 + 2 and einsum_flops("i,j->ij", i=2, j=3) == 6
    assert einsum_flops("ab cd,cd->ab", (2, 3), (3,)) == 12
    assert einsum_flops("ab,cd->", (2,), (3,)) == 2 + 3 + 1 and einsum_flops("ab,c->", (2,), (3,)) == 2 + 3 + 1
    assert einsum_flops("ij,j->i", (2, 3), (3,)) == 12 and einsum_flops("i,j->ij", (2,), (3,)) == 6
    # Axes behind '...' are as many as the longest shape has, and line up at their ends; axes with names do not broadcast.
    assert einsum_flops("... i, ... j -> ... i j", (4, 2, 3), (5,)) == 4 * 2 * 3 * 5
    assert einsum_flops("... i, ... j -> ... i j", (5,), (4, 2, 3)) == 4 * 2 * 3 * 5
    with pytest.raises(ValueError, match="axis i is 3 and 1 at once"):
        einsum_flops("i,i->i", (3,), (1,))
    with pytest.raises(ValueError, match="axis ...0 is 3 and 2 at once"):
        einsum_flops("...,...->...", (3,), (2,))


def test_an_axis_of_one_operand_alone_is_added_up_first():
    """Not twice the product of all sizes, 12,000: 200 additions, then 10 × 30 products."""
    flops = einsum_flops("a b, c -> a c", a=10, b=20, c=30)
    assert flops == 500 and flops.matmul == 0
    assert [(step.kind, step.flops) for step in flops.steps] == [("sum", 200), ("multiply", 300)]


def test_the_best_order_needs_numpy_and_few_operands(monkeypatch):
    many = ", ".join("i j" for _ in range(8))
    assert einsum_flops(f"{many} -> i", i=2, j=3) == 6 * 6 + 2 * 6
    with pytest.raises(ValueError, match="has 8 operands; the search for the best order takes at most 7"):
        einsum_flops(f"{many} -> i", i=2, j=3, order="best")
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert einsum_flops("i j, j k, k l -> i l", i=2, j=3, k=4, l=5) > 0
    assert einsum_flops("i j, j k -> i k", i=2, j=3, k=4, order="best") == 48, "two operands have one order"
    with pytest.raises(ImportError, match="pip install numpy, or take order='left'"):
        einsum_flops("i j, j k, k l -> i l", i=2, j=3, k=4, l=5, order="best")
    with pytest.raises(ImportError, match="pip install numpy"):
        einsum_flops("a b, b c, c d, d e, e f, f g, g a -> ", **dict.fromkeys("abcdefg", 2), order="best")


def test_order_of_a_chain():
    sizes = {"b": 1, "d": 1000, "f": 1000, "v": 1000}
    left = einsum_flops("v f, f d, d b -> v b", **sizes)
    best = einsum_flops("v f, f d, d b -> v b", order="best", **sizes)
    assert (left, best) == (2 * 1000**3 + 2 * 1000**2, 2 * 2 * 1000**2)
    assert [step.output for step in best.steps] == ["b f", "b v"]


@pytest.mark.parametrize(
    ("pattern", "shapes", "axes", "message"),
    [
        ("b d, d f", (), {}, "with one '->'"),
        (7, (), {}, "a pattern reads like"),
        ("b (h d), d -> b h", (), {}, "belong to rearrange"),
        (
            "b d, d f -> b g",
            (),
            {"b": 1, "d": 2, "f": 3},
            "the output has g, which no operand has; operands have b, d, f",
        ),
        ("b d, d f -> b b", (), {"b": 1, "d": 2, "f": 3}, "twice"),
        ("b d, d f -> b f", (), {"b": 1, "d": 2}, "also needs f=…; given: b=1, d=2"),
        ("b d, d f -> b f", (), {"b": 1, "d": 2, "f": 3, "h": 4}, "sizes were also given for h"),
        ("b d, d f -> b f", (), {"b": 1, "d": 2, "f": 0}, "size of axis f must be"),
        ("b d, d f -> b f", (), {"b": 1, "d": 2.0, "f": 1}, "size of axis d must be"),
        ("b d, d f -> b f", ((2, 3), (4, 5)), {}, "axis d is 3 and 4 at once; given: \\(2, 3\\), \\(4, 5\\)"),
        ("b d, d f -> b f", ((2, 3), (3, 5)), {"f": 6}, "axis f is 6 and 5 at once"),
        ("b d, d f -> b f", ((2, 3),), {}, "has 2 operands, but 1 shapes"),
        ("b d, d f -> b f", ((2, 3), (3,)), {}, "has 2 axes, but its shape is"),
        ("bd,df->bf", ((2, 3), (3, 4, 5)), {}, "'d f' has 2 axes, but its shape is \\(3, 4, 5\\)"),
        ("b d, d f -> b f", ((2, 3), 3), {}, "the shape of an operand is a tuple.*got 3"),
        ("b d, d f -> b f", ((2, 3), torch.ones(3, 4)), {}, "a tuple such as \\(2, 3\\) or x.shape, got a Tensor"),
        ("... d, d f -> ... f", (), {"d": 2, "f": 3}, "give the shapes"),
        ("b d, d% -> b", (), {"b": 1, "d": 2}, "not a name of an axis"),
        ("... b ..., b -> b", ((2, 3), (3,)), {}, "has '...' twice in '... b ...'"),
    ],
)
def test_what_does_not_fit_is_a_sentence(pattern, shapes, axes, message):
    with pytest.raises(ValueError, match=message):
        einsum_flops(pattern, *shapes, **axes)


def test_unknown_order():
    with pytest.raises(ValueError, match="order must be 'left'"):
        einsum_flops("i, i ->", i=3, order="greedy")
