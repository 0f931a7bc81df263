"""Exercise 09.4: the bytes of AdamW's state."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def adamw_state_bytes(shapes, element_bytes):
    return sum(2 * math.prod(shape) * element_bytes + 4 for shape in shapes)


EXERCISE = Exercise(
    id="09.4",
    reference=adamw_state_bytes,
    cases=lambda: [
        Case(args=([(1000, 10)], 4), label="one fp32 matrix of 10,000 elements"),
        Case(args=([(1000, 10)], 2), label="one bf16 matrix of 10,000 elements"),
        Case(args=([(64, 64), (64,), ()], 2), label="a bf16 matrix, a vector and a scalar"),
    ],
    mistakes=(
        Mistake(
            lambda shapes, e: sum(2 * math.prod(s) * e for s in shapes),
            "Each parameter tensor also has a step counter, a 4-byte fp32 scalar: {given} lacks them.",
        ),
        Mistake(
            lambda shapes, e: sum(math.prod(s) * e + 4 for s in shapes),
            "AdamW keeps two tensors for each parameter, m and v: {given} counts one.",
        ),
        Mistake(
            lambda shapes, e: sum(3 * math.prod(s) * e + 4 for s in shapes),
            "You counted the parameters themselves; the question is for the optimizer's state alone.",
        ),
        Mistake(
            lambda shapes, e: sum(8 * math.prod(s) + 4 for s in shapes),
            "You assumed fp32 state. torch makes it in the parameter's own dtype: {expected} for {case}.",
        ),
        Mistake(
            lambda shapes, e: sum(2 * math.prod(s) * e for s in shapes) + 4,
            "There is one step counter for each tensor, not one for the whole optimizer: look at {case}.",
        ),
        Mistake(
            lambda shapes, e: sum((2 * math.prod(s) + 1) * e for s in shapes),
            "The step counter is fp32 whatever the parameter is: 4 bytes, as whole numbers above 256 need in bf16.",
        ),
    ),
    hints=(
        "Which tensors does AdamW keep for each parameter, and in which dtype?",
        "exp_avg and exp_avg_sq in the parameter's dtype, and one fp32 step counter for each tensor.",
        "sum(2 * math.prod(shape) * ____ + ____ for shape in shapes).",
    ),
    checked="fp32 and bf16, a matrix, a vector and a 0-d scalar.",
)
