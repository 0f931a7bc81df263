"""Exercises of lesson 02: rounding."""

import math
import random

from cs336kit.teach.exercises.core import exercise


def _numbers():
    draw = random.Random(3)
    fixed = ((100.3, 7), (-0.1, 10), (1 + 3 * 2**-8, 7), (1 + 2**-8, 7), (-1 - 2**-8, 7), (0.0, 7), (1e-20, 3))
    drawn = ((draw.gauss(0, 1) * 2.0 ** draw.randrange(-30, 30), draw.choice((2, 3, 7, 10))) for _ in range(30))
    return {f"x={x!r}, fraction_bits={bits}": (x, bits) for x, bits in (*fixed, *drawn)}


@exercise(
    "02.1",
    cases=_numbers,
    mistakes={
        "round_to(x, fraction_bits, rounded=math.trunc)": "that cuts off towards zero; take the nearer neighbour.",
        "round_to(x, fraction_bits, rounded=lambda n: math.floor(n + 0.5))": "a tie goes to the even neighbour.",
        "round(x * 2**fraction_bits) / 2**fraction_bits": "your steps are those between 1 and 2; they grow with x.",
        "round_to(x, fraction_bits, finer=0)": "your step is twice too large: math.frexp gives a fraction below 1.",
        "round_to(x, fraction_bits, finer=2)": "your step is half of what it should be, so one bit too many is kept.",
        "round(x, fraction_bits)": "round(x, n) keeps n decimal places, and fraction bits are places in base two.",
    },
    hints=(
        "How far apart are the neighbours of x? Everything else follows from that step.",
        "Find the power of two below |x| with math.frexp, divide by the step, round to a whole number, multiply back.",
        "step = 2.0 ** (math.frexp(x)[1] - ___ - fraction_bits); Python's round() sends ties to the even side.",
    ),
    checked="numbers far from 1, ties on both sides, zero, negative numbers and 30 random ones.",
    tolerance=0,
)
def round_to(x, fraction_bits, *, rounded=round, finer=1):
    step = 2.0 ** (math.frexp(x)[1] - finer - fraction_bits)
    return rounded(x / step) * step


def _wishes():
    named = {
        "values from 1e-4 to 60000 within 0.1 %": (60000.0, 1e-4, 0.001),
        "values from 1e-30 to 1e30 within 1 %": (1e30, 1e-30, 0.01),
        "values from 1e-6 to 200 within 7 %": (200.0, 1e-6, 0.07),
        "values from 0.4 to 3 within 26 %": (3.0, 0.4, 0.26),
        "values from 1e-20 to 1 within 0.1 %": (1.0, 1e-20, 0.001),
        "fp16's own largest value, smallest normal and error": (65504.0, 2.0**-14, 2.0**-11),
        "1 more than fp16's largest value, with its smallest normal and error": (65505.0, 2.0**-14, 2.0**-11),
        "fp16's largest value and error, 1 % below its smallest normal": (65504.0, 0.99 * 2.0**-14, 2.0**-11),
        "values from 0.5 to 6 within 60 %": (6.0, 0.5, 0.6),
    }
    draw = random.Random(5)
    for _ in range(15):
        top, low, error = 10 ** draw.uniform(0, 30), 10 ** draw.uniform(-30, -1), 10 ** draw.uniform(-6, -1)
        named[f"values from {low:.3g} to {top:.3g} within {error:.2g}"] = (top, low, error)
    return named


def _by_count(largest, smallest, relative_error):
    powers = math.floor(math.log2(largest)) - math.floor(math.log2(smallest)) + 1
    return max(2, math.ceil(math.log2(powers + 2))), design(largest, smallest, relative_error)[1]


@exercise(
    "02.2",
    cases=_wishes,
    mistakes={
        "design(largest, smallest, relative_error, half=0)": "one fraction bit too many. Rounding is off by half a step.",
        "right_if(smallest=1.0)": "it reaches the largest value; the smallest lies below its normal numbers.",
        "right_if(smallest=smallest * 2.0 ** right[1])": "subnormals miss the relative error, and your smallest is one.",
        _by_count: "you counted the powers of two in the range; the bias decides where they lie.",
        "design(largest, smallest, relative_error, top=1)": "the all-ones exponent is reserved: one exponent bit too few.",
        "(right[0] + 1, right[1])": "one exponent bit too many: with one less, both ends are still normal numbers.",
    },
    hints=(
        "The two answers are independent: which wish fixes the fraction bits, and which the exponent bits?",
        "Rounding is off by half a step, 2**-(fraction_bits + 1) of the number. For the exponent test max and min_normal.",
        "Raise exponent_bits until (2 - 2**-fraction_bits) * 2**bias >= largest and 2**(1 - bias) <= ___.",
    ),
    checked="nine wishes, fp16's own ends and those just beyond among them, and 15 random ones.",
)
def design(largest, smallest, relative_error, *, half=1, top=0):
    # An error of half a step, 2^-(f+1), relative to the power of two below the number.
    fraction_bits = 1
    while 2.0 ** -(fraction_bits + half) > relative_error:
        fraction_bits += 1
    exponent_bits, bias = 2, 1
    while (2 - 2.0**-fraction_bits) * 2.0 ** (bias + top) < largest or 2.0 ** (1 - bias) > smallest:
        exponent_bits, bias = exponent_bits + 1, 2 * bias + 1
    return exponent_bits, fraction_bits
