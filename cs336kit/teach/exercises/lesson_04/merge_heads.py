"""Exercise 04.3: merge the heads."""

from einops import rearrange

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_04.tensors import numbers
from cs336kit.teach.exercises.lesson_04.wording import wrong


def _merge(x):
    return rearrange(x, "b a s h -> b s (a h)")


def _to_merge():
    shapes = ((2, 2, 3, 4), (1, 3, 5, 2), (2, 4, 4, 4))
    cases = [Case(args=(numbers(*shape),), label=f"shape {shape}") for shape in shapes]
    turned = numbers(2, 3, 5, 2).transpose(1, 2)
    return [*cases, Case(args=(turned,), label="a transposed (non-contiguous) tensor of shape (2, 5, 3, 2)")]


EXERCISE = Exercise(
    id="04.3",
    reference=_merge,
    cases=_to_merge,
    mistakes=(
        wrong(
            lambda x: x.reshape(x.shape[0], x.shape[2], -1),
            "the shape is right and the numbers are not: reshape reads heads before positions; swap them first.",
        ),
        wrong(
            lambda x: rearrange(x, "b a s h -> b s (h a)"),
            "the shape is right and the numbers are not: you wove the heads together, and each should stay a block, (a h).",
        ),
        wrong(
            lambda x: rearrange(x, "b a s h -> b (a s) h"),
            "you merged heads with positions; heads are merged with features.",
        ),
        wrong(
            lambda x: rearrange(x, "b a s h -> b s a h"),
            "heads and positions have changed places, and heads and features are still two axes.",
        ),
        wrong(
            lambda x: rearrange(x, "b a s h -> s b (a h)"),
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
)
