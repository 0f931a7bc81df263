"""Exercises of lesson 06: counting FLOPs."""

import math

from cs336kit.teach.exercises.core import exercise


@exercise(
    "06.1",
    cases=[((3, 5), (5, 7)), ((16, 32), (32, 2)), ((4, 8, 16, 32), (32, 2)), ((1, 1), (1, 9))],
    mistakes={
        "right // 2": "that counts the multiplications alone. Each of them is followed by an add.",
        "right - math.prod(x_shape[:-1]) * w_shape[-1]": "you left out the first add, to zero: the convention counts it.",
        "right_if(x_shape=x_shape[-2:])": "the leading axes are missing. Every matrix of the batch is multiplied.",
        "right * w_shape[0]": "the inner axis stands in both shapes, and you counted it twice.",
        "right // x_shape[-1]": "that is two FLOPs per output. Each output adds up as many products as the inner axis is long.",
        "right_if(w_shape=w_shape[:1])": "the first axis of w is the inner one, which x has already. Its last axis is new.",
    },
    hints=(
        "How many numbers does the product have, and how much work is one of them?",
        "Outputs: the leading axes of x times the last axis of w. Work for each: one multiply and one add per inner index.",
        "return 2 * math.prod(x_shape) * w_shape[___]",
    ),
    checked="a small product, the lecture's (16,32) × (32,2), a batch with two leading axes, and a single row.",
)
def product_flops(x_shape, w_shape):
    return 2 * math.prod(x_shape) * w_shape[-1]
