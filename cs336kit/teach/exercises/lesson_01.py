"""Exercises of lesson 01: floating point."""

import math
import random

from cs336kit.teach.exercises.core import exercise


def _patterns():
    draw = random.Random(1)
    fixed = (
        "0.01111.0000000000",
        "1.10001.1010000000",
        "0.11110.1111111111",
        "0.00000.0000000001",
        "1.00000.1100000000",
    )
    drawn = (f"{draw.getrandbits(1)}.{draw.randrange(31):05b}.{draw.getrandbits(10):010b}" for _ in range(20))
    return {bits: (bits,) for bits in (*fixed, *drawn)}


@exercise(
    "01.1",
    cases=_patterns,
    mistakes={
        "value(bits, one=0)": "the leading 1 of a normal number is not stored, and it is missing here.",
        "value(bits, bias=0)": "the exponent field is stored with the bias 15 added, so take it off.",
        "abs(right)": "the sign bit is 1, so the number is negative.",
        "value(bits, low=0)": "half of what is right: subnormals keep the exponent of field 1, which is -14, and not -15.",
        "value(bits, bias=16)": "half of what is right: the bias is 2**(5 - 1) - 1 = 15, and not 16.",
        "value(bits, low=0, low_one=1)": "exponent field 0 means a subnormal, which has no implied leading 1.",
    },
    hints=(
        "Split the text at its points. Which of the three fields is stored with something added?",
        "A normal number is (1 + fraction/1024) times 2 to the power (exponent - 15). Exponent field 0 follows another rule.",
        "When the exponent field is 0 the value is (0 + fraction/1024) · 2**___, so that it continues below field 1.",
    ),
    checked="1, -6.5, the largest value, two subnormals and 20 random finite codes.",
)
def value(bits, *, one=1, bias=15, low=1, low_one=0):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    size = ((one if exponent else low_one) + fraction / 2**10) * 2.0 ** (max(exponent, low) - bias)
    return -size if sign else size


@exercise(
    "01.2",
    cases={
        "fp16 (fraction_bits=10)": (10,),
        "bf16 (fraction_bits=7)": (7,),
        "fp32 (fraction_bits=23)": (23,),
        "E4M3 (fraction_bits=3)": (3,),
        "fp64 (fraction_bits=52)": (52,),
    },
    mistakes={
        "2**fraction_bits + 1": "it is there: the implied leading 1 is one more bit of the whole number.",
        "right - 1": "that is a power of two, so it is there; the next whole number is not.",
        "right - 2": "its bits are all ones and just fit: go on counting.",
        "2 ** (fraction_bits + 2) + 1": "up there the steps are already 4, one power of two too far.",
        "2**fraction_bits": "that is a power of two, so it is there, and the steps from there on are still 1.",
        "2.0 ** (fraction_bits + 1) + 1": "Python's floats are fp64, which misses this number itself. Take 2 and not 2.0.",
    },
    hints=(
        "From which power of two on is the spacing larger than 1?",
        "In [2**k, 2**(k+1)) the spacing is 2**(k - fraction_bits). Set it to 2.",
        "The spacing is 2 from 2**(fraction_bits + ___) on; that power itself is still there.",
    ),
    checked="fp16, bf16, fp32, E4M3 and fp64.",
    tolerance=0,
)
def first_missing(fraction_bits):
    return 2 ** (fraction_bits + 1) + 1


def _numbers():
    draw = random.Random(3)
    fixed = ((100.3, 7), (-0.1, 10), (1 + 3 * 2**-8, 7), (1 + 2**-8, 7), (-1 - 2**-8, 7), (0.0, 7), (1e-20, 3))
    drawn = ((draw.gauss(0, 1) * 2.0 ** draw.randrange(-30, 30), draw.choice((2, 3, 7, 10))) for _ in range(30))
    return {f"x={x!r}, fraction_bits={bits}": (x, bits) for x, bits in (*fixed, *drawn)}


@exercise(
    "01.3",
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


def _formats():
    yield from ((5, 10, True), (8, 7, True), (5, 2, True), (4, 3, False), (2, 1, False))
    draw = random.Random(4)
    for _ in range(20):
        yield draw.randint(2, 8), draw.randint(1, 12), draw.random() < 0.5


@exercise(
    "01.4",
    cases=lambda: {f"{e} exponent and {f} fraction bits (ieee={ieee})": (e, f, ieee) for e, f, ieee in _formats()},
    mistakes={
        "largest(exponent_bits, fraction_bits, ieee, taken=0)": "that code is NaN here: the largest number is one below.",
        "right_if(ieee=True)": "you reserved the whole top exponent, as IEEE does. Only one code is reserved here.",
        "right_if(fraction_bits=60)": "a power of two: the fraction cannot reach 1, it stops one step before.",
        "2 * right": "with ieee=True the top exponent belongs to infinity and NaN, so go one exponent down.",
        "largest(exponent_bits, fraction_bits, ieee, one=0)": "the implied leading 1 is missing in front of the fraction.",
        "right / 2": "half of what is right: the bias is 2**(exponent_bits - 1) - 1, one less than you took.",
    },
    hints=(
        "Which exponent field is the largest that still holds numbers?",
        "With ieee=True it is the second from the top, with every fraction. Otherwise the top one, and one fraction is taken.",
        "(1 + last/2**fraction_bits) * 2.0 ** (field - bias), where last is 2**fraction_bits - 1 with ieee and ___ without.",
    ),
    checked="fp16, bf16, E5M2 (IEEE) and E4M3, E2M1-style (not IEEE), and 20 random formats.",
)
def largest(exponent_bits, fraction_bits, ieee, *, one=1, taken=1):
    field = 2**exponent_bits - (2 if ieee else 1)
    last = 2**fraction_bits - 1 - (0 if ieee else taken)
    return (one + last / 2**fraction_bits) * 2.0 ** (field - 2 ** (exponent_bits - 1) + 1)


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
    "01.5",
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
