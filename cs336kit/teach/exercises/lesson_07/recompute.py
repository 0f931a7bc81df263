"""Exercise 07.5: recomputation with an early stop."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_07.products import products


def recomputed_flops(batch, sizes, segment):
    products = [2 * batch * m * n for m, n in zip(sizes, sizes[1:], strict=False)]
    return sum(f for i, f in enumerate(products) if (i + 1) % segment and i + 1 < len(products))


def _list(batch, sizes):
    return list(products(batch, sizes).values())


EXERCISE = Exercise(
    id="07.5",
    reference=recomputed_flops,
    cases=lambda: [
        Case((32, (8, 16, 4), 2), label="two layers in one segment"),
        Case((32, (8, 16, 4), 1), label="two layers, each its own segment"),
        Case((10, (5, 6, 7, 8, 9), 2), label="four layers in segments of two"),
        Case((10, (5, 6, 7, 8, 9, 10), 2), label="five layers in segments of two"),
        Case((7, (4, 5, 6, 7, 8, 9, 10), 3), label="six layers in segments of three"),
        Case((3, (4, 5, 6, 7), 10), label="three layers in one segment of up to ten"),
    ],
    mistakes=(
        Mistake(
            lambda b, s, n: sum(_list(b, s)),
            "For {case} you returned {given}: a whole forward pass, the rule of 8NP. Recomputation stops before a segment's "
            "last product, whose output backward does not need.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)[:-1]),
            "For {case} you returned {given}: you left out the last product of the network. Every segment's last product "
            "is left out.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if i % n),
            "For {case} you returned {given}: you left out the first product of each segment. Its result is not stored "
            "(only its input is), so it is computed again; the last one is not.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if not (i + 1) % n or i + 1 == len(s) - 1),
            "For {case} you returned {given}: these are the last products of the segments, the ones that are not repeated.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if (i + 1) % n),
            "For {case} you returned {given}: the last segment is shorter, and its last product is not repeated either.",
        ),
        Mistake(
            lambda b, s, n: 2 * recomputed_flops(b, s, n),
            "For {case} you returned {given}, twice too much: a product that is computed again costs one forward.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)) * (n - 1) // n,
            "For {case} you returned {given}, a share of forward. That is right only if all products cost the same and no "
            "segment is short.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)) // n,
            "For {case} you returned {given}, forward divided by the segment's length. Go through the segments and leave out "
            "the last product of each.",
        ),
    ),
    hints=(
        "What does backward need from inside a segment: inputs of products, or outputs?",
        "A product keeps its input before it runs. Once the last product of a segment has its input, nothing is missing.",
        "Sum the products except number segment, 2·segment, … and except the very last.",
    ),
    checked="six cuts of networks with 2 to 6 layers, among them a short last segment and a segment longer than the network.",
)
