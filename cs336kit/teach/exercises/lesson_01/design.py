"""Exercise 01.5: design a format."""

import random

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_01.wording import wrong


def _design(largest, smallest, relative_error, *, half=True, normal=True, low_end=True, reserved=1, fewest=1):
    # An error of half a step, 2^-(f+1), relative to the power of two below the number.
    fraction_bits = fewest
    while 2.0 ** -(fraction_bits + half) > relative_error:
        fraction_bits += 1
    exponent_bits = 2
    while True:
        bias = 2 ** (exponent_bits - 1) - 1
        bottom = 2.0 ** (1 - bias - (0 if normal else fraction_bits))
        top = (2 - 2.0**-fraction_bits) * 2.0 ** (bias + 1 - reserved)
        if top >= largest and (bottom <= smallest or not low_end):
            return exponent_bits, fraction_bits
        exponent_bits += 1


def _wishes():
    named = (
        (60000.0, 1e-4, 0.001, "values from 1e-4 to 60000 within 0.1 %"),
        (1e30, 1e-30, 0.01, "values from 1e-30 to 1e30 within 1 %"),
        (200.0, 1e-6, 0.07, "values from 1e-6 to 200 within 7 %"),
        (3.0, 0.4, 0.26, "values from 0.4 to 3 within 26 %"),
        (1.0, 1e-20, 0.001, "values from 1e-20 to 1 within 0.1 %"),
        (65504.0, 2.0**-14, 2.0**-11, "fp16's own largest value, smallest normal and error"),
        (65505.0, 2.0**-14, 2.0**-11, "1 more than fp16's largest value, with its smallest normal and error"),
        (65504.0, 0.99 * 2.0**-14, 2.0**-11, "fp16's largest value and error, 1 % below its smallest normal"),
        (6.0, 0.5, 0.6, "values from 0.5 to 6 within 60 %"),
    )
    generator = random.Random(5)
    drawn = []
    for _ in range(15):
        largest, smallest = 10 ** generator.uniform(0, 30), 10 ** generator.uniform(-30, -1)
        error = 10 ** generator.uniform(-6, -1)
        drawn.append((largest, smallest, error, f"values from {smallest:.3g} to {largest:.3g} within {error:.2g}"))
    return [Case(args=args, label=label) for *args, label in (*named, *drawn)]


EXERCISE = Exercise(
    id="01.5",
    reference=lambda largest, smallest, relative_error: _design(largest, smallest, relative_error),
    cases=_wishes,
    mistakes=(
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, half=False),
            ": one fraction bit too many. Rounding to nearest is off by at most half a step.",
        ),
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, low_end=False),
            ", which reaches the largest value; the smallest lies below its normal numbers.",
        ),
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, normal=False),
            ": the smallest value is a subnormal there, and subnormals miss the relative error.",
        ),
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error)[::-1],
            ": the order is (exponent_bits, fraction_bits), and the right answer is {expected}.",
        ),
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, reserved=0),
            ": one exponent bit too few. The all-ones exponent is reserved, so the largest exponent is the bias.",
        ),
        wrong(
            lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, fewest=0),
            ": without a fraction bit the all-ones exponent has no code for NaN; start from 1.",
        ),
        wrong(
            lambda largest, smallest, relative_error: tuple(
                bits + more for bits, more in zip(_design(largest, smallest, relative_error), (1, 0), strict=True)
            ),
            ": one exponent bit too many: with one less, both ends are still normal numbers (they may be reached exactly).",
        ),
    ),
    hints=(
        "The two answers are independent: which wish fixes the fraction bits, and which the exponent bits?",
        "Rounding is off by half a step at most, 2**-(fraction_bits + 1) of the number. For the exponent, "
        "test max and min_normal.",
        "Raise exponent_bits until (2 - 2**-fraction_bits) * 2**bias >= largest and 2**(1 - bias) <= ___, "
        "with bias = 2**(exponent_bits - 1) - 1.",
    ),
    checked="nine wishes, fp16's own ends and those just beyond among them, and 15 random ones.",
)
