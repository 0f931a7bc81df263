"""Exercises 05.1 and 05.2: FLOPs of a product, and MFU from a slide."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def product_flops(x_shape, w_shape):
    return 2 * math.prod(x_shape) * w_shape[-1]


PRODUCT = Exercise(
    id="05.1",
    reference=product_flops,
    cases=lambda: [
        Case(((3, 5), (5, 7))),
        Case(((16, 32), (32, 2))),
        Case(((4, 8, 16, 32), (32, 2))),
        Case(((1, 1), (1, 9))),
    ],
    mistakes=(
        Mistake(
            lambda x, w: math.prod(x) * w[-1],
            "For {case} you returned {given}: that counts the multiplications alone. Each of them is followed by an add.",
        ),
        Mistake(
            lambda x, w: (2 * x[-1] - 1) * math.prod(x[:-1]) * w[-1],
            "For {case} you returned {given}: you left out the first add of each output, which adds to zero. That count "
            "is defensible, but the convention of the course, of the papers and of torch's counter is D multiplies and D "
            "adds.",
        ),
        Mistake(
            lambda x, w: 2 * x[-2] * x[-1] * w[-1],
            "For {case} you returned {given}: the leading axes are missing. Every matrix of the batch is multiplied.",
        ),
        Mistake(
            lambda x, w: 2 * math.prod(x) * math.prod(w),
            "For {case} you returned {given}: the inner axis stands in both shapes, and you counted it twice.",
        ),
        Mistake(
            lambda x, w: 2 * math.prod(x[:-1]) * w[-1],
            "For {case} you returned {given}: that is two FLOPs per output. Each output adds up as many products as the "
            "inner axis is long.",
        ),
        Mistake(
            lambda x, w: 2 * x[0] * x[-1] * w[-1],
            "For {case} you returned {given}: some axes of x are missing. Its FLOPs grow with every one of them.",
        ),
        Mistake(
            lambda x, w: 2 * x[0] * x[1] * w[1],
            "For {case} you returned {given}: you took x for a matrix. It may have any number of leading axes.",
        ),
        Mistake(
            lambda x, w: 2 * math.prod(x) * w[0],
            "For {case} you returned {given}: the first axis of w is the inner one, which x has already. Its last axis is new.",
        ),
        Mistake(
            lambda x, w: math.prod(x[:-1]) * w[-1],
            "For {case} you returned {given}: that is how many numbers come out. How much work is each of them?",
        ),
    ),
    hints=(
        "How many numbers does the product have, and how much work is one of them?",
        "Outputs: the leading axes of x times the last axis of w. Work for each: one multiply and one add per inner index.",
        "return 2 * math.prod(x_shape) * w_shape[___]",
    ),
    checked="a small product, the lecture's (16,32) × (32,2), a batch with two leading axes, and a single row.",
)


def mfu(flops, seconds, sparse_peak, accelerators):
    return flops / seconds / (sparse_peak / 2 * accelerators)


MFU = Exercise(
    id="05.2",
    reference=mfu,
    cases=lambda: [
        Case((2**43, 0.03216, 1979e12, 1), label="the lecture's product in bf16"),
        Case((6e15, 5.0, 624e12, 8), label="a step on 8 A100s"),
        Case((1e12, 0.5, 3958e12, 4), label="a small fp8 step on 4 H100s"),
    ],
    mistakes=(
        Mistake(
            lambda f, s, peak, g: f / s / (peak * g),
            "You divided by the sparse peak: for {case} you returned {given}. Your matrices are dense, and the dense peak "
            "is half of that number.",
        ),
        Mistake(
            lambda f, s, peak, g: f / s / (peak / 2),
            "Only one accelerator's peak is counted: for {case} you returned {given}. The promise grows with their number.",
        ),
        Mistake(
            lambda f, s, peak, g: 100 * mfu(f, s, peak, g),
            "This is a percentage: for {case} you returned {given}. MFU is a fraction; 0.5 is half of the peak.",
        ),
        Mistake(
            lambda f, s, peak, g: 1 / mfu(f, s, peak, g),
            "It is upside down: for {case} you returned {given}. Achieved stands above promised.",
        ),
        Mistake(
            lambda f, s, peak, g: f * s / (peak / 2 * g),
            "You multiplied by the seconds: for {case} you returned {given}. FLOPs per second are FLOPs divided by seconds.",
        ),
        Mistake(
            lambda f, s, peak, g: f / s / (peak * 2 * g),
            "You doubled the sparse peak: for {case} you returned {given}. The dense peak is half of it.",
        ),
        Mistake(
            lambda f, s, peak, g: f / s,
            "This is the FLOP/s achieved: for {case} you returned {given}. MFU is a fraction of what was promised.",
        ),
        Mistake(
            lambda f, s, peak, g: f / (peak / 2 * g),
            "This is a time: for {case} you returned {given}, the seconds that the FLOPs would take at the peak.",
        ),
        Mistake(
            lambda f, s, peak, g: f * g / s / (peak / 2),
            "You multiplied the achieved FLOP/s by the number of accelerators: for {case} you returned {given}. The FLOPs are "
            "those of the whole step; it is the promise that grows.",
        ),
    ),
    hints=(
        "MFU compares two rates. Which one was achieved, and which one was promised for dense matrices?",
        "Achieved: FLOPs ÷ seconds. Promised: half of the sparse peak, times the number of accelerators.",
        "return flops / seconds / (sparse_peak / ___ * ___)",
    ),
    checked="the lecture's product, a step on 8 A100s and an fp8 step on 4 H100s.",
)
