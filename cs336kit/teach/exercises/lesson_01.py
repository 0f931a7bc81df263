"""Exercises of lesson 01: number formats."""

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


def _formats():
    yield from ((5, 10, True), (8, 7, True), (5, 2, True), (4, 3, False), (2, 1, False))
    draw = random.Random(4)
    for _ in range(20):
        yield draw.randint(2, 8), draw.randint(1, 12), draw.random() < 0.5


@exercise(
    "01.3",
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
