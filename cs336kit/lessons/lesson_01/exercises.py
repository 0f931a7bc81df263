"""Exercises of lesson 01: number formats."""

import math
import random

from cs336kit.teach.exercises.core import exercise


@exercise(
    "01.1",
    cases={
        "fp16 (fraction_bits=10)": (10,),
        "bf16 (fraction_bits=7)": (7,),
        "fp32 (fraction_bits=23)": (23,),
        "E4M3 (fraction_bits=3)": (3,),
        "fp64 (fraction_bits=52)": (52,),
    },
    mistakes={
        "2**fraction_bits + 1": "the format has that number: the implied leading 1 adds one more bit to the whole number.",
        "right - 1": "that is a power of two, so the format has it. The next whole number is missing.",
        "right - 2": "all of its bits are ones, and they just fit. Keep counting.",
        "2 ** (fraction_bits + 2) + 1": "that is one power of two too far: up there the steps are already 4.",
        "2**fraction_bits": "that is a power of two, so the format has it, and the steps just above it are still 1.",
        "2.0 ** (fraction_bits + 1) + 1": "that is a float. Floats are fp64, which has a first missing number of its own: "
        "take 2 and not 2.0.",
    },
    hints=(
        "From which power of two on is the step between neighbors larger than 1?",
        "Try it with a format of three fraction bits: write down the numbers from 8 to 32 that it holds.",
    ),
    checked="fp16, bf16, fp32, E4M3 and fp64.",
    tolerance=0,
)
def first_missing(fraction_bits):
    return 2 ** (fraction_bits + 1) + 1


def _codes():
    named = {
        "1 in fp16": (0b0_01111_0000000000, 5, 10),
        "-6.5 in fp16": (0b1_10001_1010000000, 5, 10),
        "the largest number of fp16": (0b0_11110_1111111111, 5, 10),
        "the smallest number of fp16": (0b0_00000_0000000001, 5, 10),
        "a negative subnormal of fp16": (0b1_00000_1100000000, 5, 10),
        "minus infinity in fp16": (0b1_11111_0000000000, 5, 10),
        "a NaN of bf16": (0b0_11111111_1000000, 8, 7),
        "zero in fp32": (0, 8, 23),
        "infinity in E5M2": (0b0_11111_00, 5, 2),
    }
    draw = random.Random(1)
    for exponent_bits, fraction_bits in ((5, 10), (8, 7), (5, 2), (8, 23), (3, 4)) * 4:
        code = draw.getrandbits(1 + exponent_bits + fraction_bits)
        named[f"code {code} with {exponent_bits} and {fraction_bits} bits"] = (code, exponent_bits, fraction_bits)
    return named


@exercise(
    "01.2",
    cases=_codes,
    mistakes={
        "abs(right)": "the sign bit is 1, so the number is negative.",
        "right_if(low=0)": "that is half of it: subnormals keep the power of two of exponent 1.",
        "right_if(low_one=1)": "exponent 0 means a subnormal, whose leading digit is 0.",
        "right_if(biased=0)": "the exponent is stored with the bias added. Subtract it.",
        "right_if(reserved=False)": "the top exponent is reserved and has no numbers.",
        "math.nan if math.isinf(right) else right": "with the top exponent and a fraction of 0, the value is infinity, not NaN.",
    },
    hints=(
        "First take the code apart: division and remainder by powers of two give you the three fields.",
        "Then there are three kinds of exponent, and each has its own sentence in this section. Begin with the two rare ones.",
    ),
    checked="nine codes of every kind, and 20 random ones of five formats.",
    avoid=("numpy", "torch", "ml_dtypes", "struct", "measure", "predict", "value"),
)
def decode(code, exponent_bits, fraction_bits, *, low=1, low_one=0, biased=1, reserved=True):
    fraction = code % 2**fraction_bits
    exponent = code // 2**fraction_bits % 2**exponent_bits
    sign = -1.0 if code >> (exponent_bits + fraction_bits) else 1.0
    if reserved and exponent == 2**exponent_bits - 1:
        return math.nan if fraction else sign * math.inf
    bias = biased * (2 ** (exponent_bits - 1) - 1)
    size = (1 if exponent else low_one) + fraction / 2**fraction_bits
    return sign * size * 2.0 ** (max(exponent, low) - bias)


def _formats():
    yield from ((5, 10, True), (8, 7, True), (5, 2, True), (4, 3, False), (2, 1, False))
    draw = random.Random(4)
    for _ in range(20):
        yield draw.randint(2, 8), draw.randint(1, 12), draw.random() < 0.5


@exercise(
    "01.3",
    cases=lambda: {f"{e} exponent and {f} fraction bits (ieee={ieee})": (e, f, ieee) for e, f, ieee in _formats()},
    mistakes={
        "right_if(taken=0)": "that code is NaN here. The largest number is just below it.",
        "right_if(ieee=True)": "you reserved the whole top exponent, as IEEE does. Only one code is reserved here.",
        "right_if(fraction_bits=60)": "that is a power of two. The fraction cannot reach 1; it stops one step before.",
        "2 * right": "with ieee=True the top exponent belongs to infinity and NaN, so go down one exponent.",
        "right_if(one=0)": "the implied leading 1 is missing in front of the fraction.",
        "right / 2": "that is half of the right value: the bias is 2**(exponent_bits - 1) - 1, one less than you took.",
    },
    hints=(
        "What is the largest exponent that still has numbers, and what is the largest fraction with it?",
        "The two rules differ here: one gives up a whole exponent, the other a single fraction of the top one.",
    ),
    checked="fp16, bf16, E5M2 (IEEE) and E4M3, one with 2 and 1 bits (not IEEE), and 20 random formats.",
)
def largest(exponent_bits, fraction_bits, ieee, *, one=1, taken=1):
    field = 2**exponent_bits - (2 if ieee else 1)
    last = 2**fraction_bits - 1 - (0 if ieee else taken)
    return (one + last / 2**fraction_bits) * 2.0 ** (field - 2 ** (exponent_bits - 1) + 1)


@exercise(
    "01.4",
    mistakes={
        "('e5m2', ..., ..., ...)": "for 1, E5M2 has the range, not the digits: its step is a quarter, so the error can exceed 10 "
        "%.",
        "(..., 'e4m3', ..., ...)": "2 goes up to 2,000, but E4M3 ends at 448.",
        "({'fp16', 'bf16', 'fp32'}, ..., ..., ...)": "that format does hold 1, but so does one of the smaller ones.",
        "(..., {'fp16', 'bf16', 'fp32'}, ..., ...)": "that format does hold 2, but so does one of the smaller ones.",
        "(..., ..., {'e4m3', 'e5m2', 'fp16'}, ...)": "3 goes up to 90,000, which is beyond the largest number of that format.",
        "(..., ..., 'fp32', ...)": "fp32 does hold 3, but so does a format with half as many bits.",
        "(..., ..., ..., {'e4m3', 'e5m2', 'fp16', 'bf16'})": "in 4, that format leaves out whole numbers long before 8,191: fp16 "
        "after 2,048, bf16 after 256, the smaller ones still earlier.",
    },
    hints=(
        "For the range, look at both ends. For the error, look just above a power of two, where it is largest.",
        "For the whole numbers, use what you found in exercise 01.1.",
    ),
    checked="E4M3 has the digits, E5M2 the range, bf16 more range with fewer digits than fp16, and fp32 both.",
)
def formats():
    return "e4m3", "e5m2", "bf16", "fp32"
