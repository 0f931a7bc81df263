"""Exercise 04.2: split the heads."""

from einops import rearrange

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_04.tensors import numbers
from cs336kit.teach.exercises.lesson_04.wording import wrong


def _split(x, heads):
    return rearrange(x, "b s (a h) -> b a s h", a=heads)


def _to_split():
    shapes = ((2, 3, 8, 2), (1, 5, 12, 3), (2, 4, 4, 1), (2, 4, 16, 4))
    cases = [Case(args=(numbers(b, s, d), k), label=f"shape ({b}, {s}, {d}), heads={k}") for b, s, d, k in shapes]
    turned = numbers(2, 6, 4).transpose(1, 2)
    return [*cases, Case(args=(turned, 3), label="a transposed (non-contiguous) tensor of shape (2, 4, 6), heads=3")]


EXERCISE = Exercise(
    id="04.2",
    reference=_split,
    cases=_to_split,
    mistakes=(
        wrong(
            lambda x, heads: x.reshape(x.shape[0], heads, x.shape[1], -1),
            "the shape is right and the numbers are not: reshape fills the axes in the order of memory and does not swap "
            "positions and heads.",
        ),
        wrong(
            lambda x, heads: rearrange(x, "b s (h a) -> b a s h", a=heads),
            "the shape is right and the numbers are not: in (h a) a head takes features that are far apart; "
            "a head is a block of neighbours, (a h).",
        ),
        wrong(
            lambda x, heads: rearrange(x, "b s (a h) -> b s a h", a=heads),
            "the heads are split and still stand behind the positions; attention wants batch, heads, positions, features.",
        ),
        wrong(
            lambda x, heads: rearrange(x, "b s (a h) -> a b s h", a=heads),
            "the heads stand before the batch; attention wants batch, heads, positions, features.",
        ),
        wrong(
            lambda x, heads: rearrange(x, "b s (a h) -> b a s h", h=heads),
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
)
