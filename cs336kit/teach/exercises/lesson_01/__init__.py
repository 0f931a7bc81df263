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


def _one_bit_more(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 2 - fraction_bits)
    return round(x / step) * step


def _next_above(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return math.ceil(x / step) * step


def _next_below(x, fraction_bits):
    step = 2.0 ** (math.frexp(x)[1] - 1 - fraction_bits)
    return math.floor(x / step) * step


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


# 01.5 · Design a format ----------------------------------------------------------------------------------------------


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
            _wrong(_bias_sixteen, ", half of what is right: the bias is 2**(5 - 1) - 1 = 15, and not 16."),
            _wrong(_subnormals_are_zero, ": exponent field 0 is zero only with fraction 0; else it is a subnormal."),
            _wrong(_subnormals_with_one, ": the exponent is right; with field 0 there is no implied 1 to add."),
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
                ": up there the steps are already 4, one power of two too far.",
            ),
            _wrong(
                lambda fraction_bits: 2**fraction_bits,
                ". That is a power of two, so it is there, and the steps from there on are still 1.",
            ),
            _wrong(
                lambda fraction_bits: 2.0 ** (fraction_bits + 1) + 1,
                ": Python's floats are fp64, which misses this number itself. Compute with whole numbers, 2 and not 2.0.",
            ),
        ),
        hints=(
            "From which power of two on is the spacing larger than 1?",
            "In [2**k, 2**(k+1)) the spacing is 2**(k - fraction_bits). Set it to 2.",
            "The spacing is 2 from 2**(fraction_bits + ___) on; that power itself is still there.",
        ),
        checked="fp16, bf16, fp32, E4M3 and fp64.",
        tolerance=0,
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
            _wrong(_one_bit_more, ": your step is half of what it should be, so one bit too many is kept."),
            _wrong(_next_above, ": that is always the neighbour above, and the nearer one is {expected}."),
            _wrong(_next_below, ": that is always the neighbour below, and the nearer one is {expected}."),
            _wrong(lambda x, fraction_bits: abs(_round_to(x, fraction_bits)), ": the sign of a negative x is lost."),
            _wrong(
                lambda x, fraction_bits: round(x, fraction_bits),
                ": round(x, n) keeps n decimal places, and fraction bits are places in base two.",
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
            _wrong(_largest_without_bias, ": the exponent field is stored with the bias added, so take it off."),
            _wrong(_largest_without_one, ": the implied leading 1 is missing in front of the fraction."),
            _wrong(
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
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, reserved=0),
                ": one exponent bit too few. The all-ones exponent is reserved, so the largest exponent is the bias.",
            ),
            _wrong(
                lambda largest, smallest, relative_error: _design(largest, smallest, relative_error, fewest=0),
                ": without a fraction bit the all-ones exponent has no code for NaN; start from 1.",
            ),
            _wrong(
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
    ),
)
