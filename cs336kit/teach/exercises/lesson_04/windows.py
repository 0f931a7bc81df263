"""Exercise 04.1: windows."""

from einops import reduce

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_04.tensors import numbers
from cs336kit.teach.exercises.lesson_04.wording import wrong


def _pool(x, window):
    return reduce(x, "b (n w) d -> b n d", "mean", w=window)


def _windows():
    shapes = ((2, 6, 3, 2), (1, 8, 2, 4), (3, 12, 5, 3), (2, 4, 4, 4))
    return [Case(args=(numbers(b, s, d), w), label=f"shape ({b}, {s}, {d}), window={w}") for b, s, d, w in shapes]


EXERCISE = Exercise(
    id="04.1",
    reference=_pool,
    cases=_windows,
    mistakes=(
        wrong(
            lambda x, window: reduce(x, "b (w n) d -> b n d", "mean", w=window),
            "you averaged positions that are far apart: in (n w) the last name runs fastest, so windows need w last.",
        ),
        wrong(
            lambda x, window: reduce(x, "b (n w) d -> b n d", "sum", w=window),
            "you returned sums, and means were asked for.",
        ),
        wrong(
            lambda x, window: x[:, ::window],
            "you returned the first position of each window, and dropped the others.",
        ),
        wrong(
            lambda x, window: reduce(x, "b (n w) d -> b n d", "max", w=window),
            "you returned the largest values, and means were asked for.",
        ),
        wrong(
            lambda x, window: x.unfold(1, window, 1).mean(-1),
            "your windows overlap: each begins one position after the last, and should begin where the last ends.",
        ),
        wrong(
            lambda x, window: reduce(x, "b (n w) d -> b n d", "mean", n=window),
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
)
