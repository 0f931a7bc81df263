"""Exercise 01.1: from bits to value."""

import random

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_01.wording import wrong


def _value(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    if exponent == 0:
        return (-1) ** sign * (fraction / 1024) * 2.0**-14
    return (-1) ** sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


def _without_implied_one(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    return (-1) ** sign * (fraction / 1024) * 2.0 ** (exponent - 15)


def _without_bias(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    return (-1) ** sign * (1 + fraction / 1024) * 2.0**exponent


def _without_subnormals(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    return (-1) ** sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


def _subnormals_one_step_low(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    return (-1) ** sign * (fraction / 1024 + (exponent > 0)) * 2.0 ** (exponent - 15)


def _bias_sixteen(bits):
    return _value(bits) / 2


def _subnormals_are_zero(bits):
    return 0.0 if bits.split(".")[1] == "00000" else _value(bits)


def _subnormals_with_one(bits):
    sign, exponent, fraction = (int(field, 2) for field in bits.split("."))
    return (-1) ** sign * (1 + fraction / 1024) * 2.0 ** (max(exponent, 1) - 15)


def _bit_patterns():
    generator = random.Random(1)
    fixed = (
        "0.01111.0000000000",
        "1.10001.1010000000",
        "0.11110.1111111111",
        "0.00000.0000000001",
        "1.00000.1100000000",
    )
    drawn = (
        f"{generator.getrandbits(1)}.{generator.randrange(31):05b}.{generator.getrandbits(10):010b}" for _ in range(20)
    )
    return [Case(args=(bits,), label=bits) for bits in (*fixed, *drawn)]


EXERCISE = Exercise(
    id="01.1",
    reference=_value,
    cases=_bit_patterns,
    mistakes=(
        wrong(_without_implied_one, ": the leading 1 of a normal number is not stored, and it is missing here."),
        wrong(_without_bias, ": the exponent field is stored with the bias 15 added, so take it off."),
        wrong(lambda bits: abs(_value(bits)), ": the sign bit is 1, so the number is negative."),
        wrong(_without_subnormals, ": exponent field 0 means a subnormal, which has no implied leading 1."),
        wrong(
            _subnormals_one_step_low,
            ", half of what is right: subnormals keep the exponent of field 1, which is -14, and not -15.",
        ),
        wrong(_bias_sixteen, ", half of what is right: the bias is 2**(5 - 1) - 1 = 15, and not 16."),
        wrong(_subnormals_are_zero, ": exponent field 0 is zero only with fraction 0; else it is a subnormal."),
        wrong(_subnormals_with_one, ": the exponent is right; with field 0 there is no implied 1 to add."),
    ),
    hints=(
        "Split the text at its points. Which of the three fields is stored with something added?",
        "A normal number is (1 + fraction/1024) times 2 to the power (exponent - 15). Exponent field 0 "
        "follows another rule.",
        "When the exponent field is 0 the value is (0 + fraction/1024) · 2**___, so that it continues below field 1.",
    ),
    checked="1, -6.5, the largest value, two subnormals and 20 random finite codes.",
)
