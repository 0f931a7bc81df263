"""Exercises of lesson 01, floating point."""

import math
import random

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def _wrong(answer, why):
    return Mistake(answer, "For {case} you returned {given}" + why)


# 01.1 · From bits to value -------------------------------------------------------------------------------------------


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


# 01.2 · The first whole number that is missing -----------------------------------------------------------------------


def _first_missing(fraction_bits):
    return 2 ** (fraction_bits + 1) + 1


def _formats_by_fraction():
    named = ((10, "fp16"), (7, "bf16"), (23, "fp32"), (3, "E4M3"), (52, "fp64"))
    return [Case(args=(bits,), label=f"{name} (fraction_bits={bits})") for bits, name in named]


# 01.3 · Rounding to a number of fraction bits ------------------------------------------------------------------------


def _round_to(x, fraction_bits):
    if x == 0:
        return 0.0
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return round(x / step) * step


def _cut_off(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return math.trunc(x / step) * step


def _ties_away(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return math.copysign(math.floor(abs(x) / step + 0.5) * step, x)


def _ties_up(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return math.floor(x / step + 0.5) * step


def _fixed_step(x, fraction_bits):
    return round(x * 2**fraction_bits) / 2**fraction_bits


def _one_bit_short(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - fraction_bits)
    return round(x / step) * step


def _numbers_to_round():
    generator = random.Random(3)
    fixed = ((100.3, 7), (-0.1, 10), (1 + 3 * 2**-8, 7), (1 + 2**-8, 7), (-1 - 2**-8, 7), (0.0, 7), (1e-20, 3))
    drawn = [
        (generator.gauss(0, 1) * 2.0 ** generator.randrange(-30, 30), generator.choice((2, 3, 7, 10)))
        for _ in range(30)
    ]
    return [Case(args=args, label=f"x={args[0]!r}, fraction_bits={args[1]}") for args in (*fixed, *drawn)]


# 01.4 · The largest value --------------------------------------------------------------------------------------------


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


# 01.5 · Design a format ----------------------------------------------------------------------------------------------


def _design(largest, smallest, relative_error, *, half=True, normal=True, low_end=True):
    # An error of half a step, 2^-(f+1), relative to the smallest number of a binade.
    fraction_bits = 1
    while 2.0 ** -(fraction_bits + half) > relative_error:
        fraction_bits += 1
    exponent_bits = 2
    while True:
        bias = 2 ** (exponent_bits - 1) - 1
        bottom = 2.0 ** (1 - bias - (0 if normal else fraction_bits))
        if (2 - 2.0**-fraction_bits) * 2.0**bias >= largest and (bottom <= smallest or not low_end):
            return exponent_bits, fraction_bits
        exponent_bits += 1


def _wishes():
    named = (
        (60000.0, 1e-4, 0.001, "values from 1e-4 to 60000 within 0.1 %"),
        (1e30, 1e-30, 0.01, "values from 1e-30 to 1e30 within 1 %"),
        (200.0, 1e-6, 0.07, "values from 1e-6 to 200 within 7 %"),
        (3.0, 0.4, 0.26, "values from 0.4 to 3 within 26 %"),
        (1.0, 1e-20, 0.001, "values from 1e-20 to 1 within 0.1 %"),
    )
    generator = random.Random(5)
    drawn = []
    for _ in range(15):
        largest, smallest = 10 ** generator.uniform(0, 30), 10 ** generator.uniform(-30, -1)
        error = 10 ** generator.uniform(-6, -1)
        drawn.append((largest, smallest, error, f"values from {smallest:.3g} to {largest:.3g} within {error:.2g}"))
    return [Case(args=args, label=label) for *args, label in (*named, *drawn)]


EXERCISES = (
    Exercise(
        id="01.1",
        reference=_value,
        cases=_bit_patterns,
        mistakes=(
            _wrong(_without_implied_one, ": the leading 1 of a normal number is not stored, and it is missing here."),
            _wrong(_without_bias, ": the exponent field is stored with the bias 15 added, so take it off."),
            _wrong(lambda bits: abs(_value(bits)), ": the sign bit is 1, so the number is negative."),
            _wrong(_without_subnormals, ": exponent field 0 means a subnormal, which has no implied leading 1."),
            _wrong(
                _subnormals_one_step_low,
                ", half of what is right: subnormals keep the exponent of field 1, which is -14, and not -15.",
            ),
        ),
        hints=(
            "Split the text at its points. Which of the three fields is stored with something added?",
            "A normal number is (1 + fraction/1024) times 2 to the power (exponent - 15). Exponent field 0 "
            "follows another rule.",
            "When the exponent field is 0 the value is (0 + fraction/1024) · 2**___, so that it continues below "
            "field 1.",
        ),
        checked="1, -6.5, the largest value, two subnormals and 20 random finite codes.",
    ),
    Exercise(
        id="01.2",
        reference=_first_missing,
        cases=_formats_by_fraction,
        mistakes=(
            _wrong(
                lambda fraction_bits: 2**fraction_bits + 1,
                ", which it does hold: the implied leading 1 is one more bit of the whole number.",
            ),
            _wrong(
                lambda fraction_bits: 2 ** (fraction_bits + 1),
                ". That is a power of two, so it is there; the next whole number is not.",
            ),
            _wrong(
                lambda fraction_bits: 2 ** (fraction_bits + 1) - 1,
                ", whose bits are all ones and just fit: go on counting.",
            ),
            _wrong(
                lambda fraction_bits: 2 ** (fraction_bits + 2) + 1,
                ": up there the steps are already 4, one binade too far.",
            ),
        ),
        hints=(
            "From which power of two on is the spacing larger than 1?",
            "In [2**k, 2**(k+1)) the spacing is 2**(k - fraction_bits). Set it to 2.",
            "The spacing is 2 from 2**(fraction_bits + ___) on; that power itself is still there.",
        ),
        checked="fp16, bf16, fp32, E4M3 and fp64.",
    ),
    Exercise(
        id="01.3",
        reference=_round_to,
        cases=_numbers_to_round,
        mistakes=(
            _wrong(_cut_off, ": that cuts off towards zero, and the nearer neighbour is {expected}."),
            _wrong(_ties_away, ": the number lies half way, and a tie goes to the even neighbour, {expected}."),
            _wrong(_ties_up, ": the number lies half way, and a tie goes to the even neighbour, {expected}, not up."),
            _wrong(_fixed_step, ": you used the steps between 1 and 2 everywhere; they double with each power of two."),
            _wrong(
                _one_bit_short, ": your step is twice as large as it should be. math.frexp gives a fraction below 1."
            ),
        ),
        hints=(
            "How far apart are the neighbours of x? Everything else follows from that step.",
            "Find the power of two below |x| with math.frexp, divide by the step, round to a whole number, "
            "multiply back.",
            "step = 2.0 ** (math.frexp(x)[1] - ___ - fraction_bits); Python's round() sends ties to the even side.",
        ),
        checked="numbers far from 1, ties on both sides, zero, negative numbers and 30 random ones.",
        tolerance=0,
    ),
    Exercise(
        id="01.4",
        reference=_largest,
        cases=_formats_by_rule,
        mistakes=(
            _wrong(
                _largest_with_nan_code,
                ". That is the code of all ones, which is NaN here: the largest number is one code below, {expected}.",
            ),
            _wrong(
                lambda exponent_bits, fraction_bits, ieee: _largest(exponent_bits, fraction_bits, True),
                ": you reserved the whole top exponent, as IEEE does. Only one code is reserved here.",
            ),
            _wrong(
                _largest_with_full_fraction, ", a power of two: the fraction cannot reach 1, it stops one step before."
            ),
            _wrong(
                _largest_never_ieee,
                ": with ieee=True the top exponent belongs to infinity and NaN, so go one exponent down.",
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
    ),
    Exercise(
        id="01.5",
        reference=lambda largest, smallest, relative_error: _design(largest, smallest, relative_error),
        cases=_wishes,
        mistakes=(
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, half=False),
                ": one fraction bit too many. Rounding to nearest is off by at most half a step.",
            ),
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, low_end=False),
                ", which reaches the largest value; the smallest lies below its normal numbers.",
            ),
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, normal=False),
                ": the smallest value is a subnormal there, and subnormals miss the relative error.",
            ),
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error)[::-1],
                ": the order is (exponent_bits, fraction_bits), and the right answer is {expected}.",
            ),
        ),
        hints=(
            "The two answers are independent: which wish fixes the fraction bits, and which the exponent bits?",
            "Rounding is off by half a step at most, 2**-(fraction_bits + 1) of the number. For the exponent, "
            "test max and min_normal.",
            "Raise exponent_bits until (2 - 2**-fraction_bits) * 2**bias >= largest and 2**(1 - bias) <= ___, "
            "with bias = 2**(exponent_bits - 1) - 1.",
        ),
        checked="five wishes with their ends and errors, and 15 random ones.",
    ),
)
