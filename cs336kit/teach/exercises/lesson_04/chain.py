"""Exercise 04.5: the cheapest order."""

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_04.wording import wrong


def _left(a, b, c, d):
    return 2 * a * b * c + 2 * a * c * d


def _right(a, b, c, d):
    return 2 * b * c * d + 2 * a * b * d


def _chain(a, b, c, d):
    return min(_left(a, b, c, d), _right(a, b, c, d))


def _chains():
    sizes = ((1024, 64, 1024, 64), (16, 64, 16, 64), (2, 3, 5, 7), (1, 512, 512, 512), (512, 512, 512, 1), (9, 2, 9, 9))
    return [Case(args=size, label="a={}, b={}, c={}, d={}".format(*size)) for size in sizes]


EXERCISE = Exercise(
    id="04.5",
    reference=_chain,
    cases=_chains,
    mistakes=(
        wrong(_left, "you returned {given}, the order (x y) z; the other order costs {expected}."),
        wrong(_right, "you returned {given}, the order x (y z); the other order costs {expected}."),
        wrong(
            lambda a, b, c, d: _chain(a, b, c, d) // 2,
            "you returned {given}, half of it: a multiply and an add are two FLOPs.",
        ),
        wrong(
            lambda a, b, c, d: 2 * a * b * c * d,
            "you returned {given}, a product of all four sizes: two products in a row need a sum of two such terms.",
        ),
        wrong(
            lambda a, b, c, d: max(_left(a, b, c, d), _right(a, b, c, d)),
            "you returned {given}, the dearer of the two orders; {expected} is the cheaper.",
        ),
        wrong(
            lambda a, b, c, d: 2 * min(a * b * c, b * c * d) + 2 * min(a * c * d, a * b * d),
            "you returned {given}: you took the cheaper product of each step, and the first choice fixes the second.",
        ),
        wrong(
            lambda a, b, c, d: min(_left(a, b, c, d), 2 * b * c * d + 2 * a * c * d),
            "you returned {given}: after y z, of b × d, comes a × b times b × d, which costs 2·a·b·d.",
        ),
        wrong(
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
)
