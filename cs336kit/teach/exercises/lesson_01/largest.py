"""Exercise 01.4: the largest value."""

import random

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_01.wording import wrong


def _largest(exponent_bits, fraction_bits, ieee):
    bias = 2 ** (exponent_bits - 1) - 1
    field = 2**exponent_bits - (2 if ieee else 1)
    last = 2**fraction_bits - (1 if ieee else 2)
    return (1 + last / 2**fraction_bits) * 2.0 ** (field - bias)


def _largest_with_nan_code(exponent_bits, fraction_bits, ieee):
    if ieee:
        return _largest(exponent_bits, fraction_bits, ieee)
    bias = 2 ** (exponent_bits - 1) - 1
    return (2 - 2.0**-fraction_bits) * 2.0 ** (2**exponent_bits - 1 - bias)


def _largest_with_full_fraction(exponent_bits, fraction_bits, ieee):
    bias = 2 ** (exponent_bits - 1) - 1
    return 2.0 * 2.0 ** (2**exponent_bits - (2 if ieee else 1) - bias)


def _largest_never_ieee(exponent_bits, fraction_bits, ieee):
    bias = 2 ** (exponent_bits - 1) - 1
    return (2 - 2.0**-fraction_bits) * 2.0 ** (2**exponent_bits - 1 - bias)


def _largest_without_bias(exponent_bits, fraction_bits, ieee):
    return _largest(exponent_bits, fraction_bits, ieee) * 2.0 ** (2 ** (exponent_bits - 1) - 1)


def _largest_without_one(exponent_bits, fraction_bits, ieee):
    bias = 2 ** (exponent_bits - 1) - 1
    last = 2**fraction_bits - (1 if ieee else 2)
    return last / 2**fraction_bits * 2.0 ** (2**exponent_bits - (2 if ieee else 1) - bias)


def _formats_by_rule():
    named = (
        ("fp16", 5, 10, True),
        ("bf16", 8, 7, True),
        ("E5M2", 5, 2, True),
        ("E4M3 (ieee=False)", 4, 3, False),
        ("an E2M1 whose all-ones code is NaN (ieee=False)", 2, 1, False),
    )
    generator = random.Random(4)
    drawn = []
    for _ in range(20):
        exponent, fraction, ieee = generator.randint(2, 8), generator.randint(1, 12), generator.random() < 0.5
        drawn.append((f"{exponent} exponent and {fraction} fraction bits (ieee={ieee})", exponent, fraction, ieee))
    return [Case(args=args, label=label) for label, *args in (*named, *drawn)]


EXERCISE = Exercise(
    id="01.4",
    reference=_largest,
    cases=_formats_by_rule,
    mistakes=(
        wrong(
            _largest_with_nan_code,
            ". That is the code of all ones, which is NaN here: the largest number is one code below, {expected}.",
        ),
        wrong(
            lambda exponent_bits, fraction_bits, ieee: _largest(exponent_bits, fraction_bits, True),
            ": you reserved the whole top exponent, as IEEE does. Only one code is reserved here.",
        ),
        wrong(_largest_with_full_fraction, ", a power of two: the fraction cannot reach 1, it stops one step before."),
        wrong(
            _largest_never_ieee,
            ": with ieee=True the top exponent belongs to infinity and NaN, so go one exponent down.",
        ),
        wrong(_largest_without_bias, ": the exponent field is stored with the bias added, so take it off."),
        wrong(_largest_without_one, ": the implied leading 1 is missing in front of the fraction."),
        wrong(
            lambda exponent_bits, fraction_bits, ieee: _largest(exponent_bits, fraction_bits, ieee) / 2,
            ", half of what is right: the bias is 2**(exponent_bits - 1) - 1, one less than you took.",
        ),
    ),
    hints=(
        "Which exponent field is the largest that still holds numbers?",
        "With ieee=True it is the second from the top, with every fraction. Otherwise it is the top one, and "
        "one fraction is taken.",
        "(1 + last/2**fraction_bits) * 2.0 ** (field - bias), where last is 2**fraction_bits - 1 with ieee "
        "and ___ without.",
    ),
    checked="fp16, bf16, E5M2 (IEEE) and E4M3, E2M1-style (not IEEE), and 20 random formats.",
)
