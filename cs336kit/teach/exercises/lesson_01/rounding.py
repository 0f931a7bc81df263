"""Exercise 01.3: rounding to a number of fraction bits."""

import math
import random

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_01.wording import wrong


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


EXERCISE = Exercise(
    id="01.3",
    reference=_round_to,
    cases=_numbers_to_round,
    mistakes=(
        wrong(_cut_off, ": that cuts off towards zero, and the nearer neighbour is {expected}."),
        wrong(_ties_away, ": the number lies half way, and a tie goes to the even neighbour, {expected}."),
        wrong(_ties_up, ": the number lies half way, and a tie goes to the even neighbour, {expected}, not up."),
        wrong(_fixed_step, ": you used the steps between 1 and 2 everywhere; they double with each power of two."),
        wrong(_one_bit_short, ": your step is twice as large as it should be. math.frexp gives a fraction below 1."),
        wrong(_one_bit_more, ": your step is half of what it should be, so one bit too many is kept."),
        wrong(_next_above, ": that is always the neighbour above, and the nearer one is {expected}."),
        wrong(_next_below, ": that is always the neighbour below, and the nearer one is {expected}."),
        wrong(lambda x, fraction_bits: abs(_round_to(x, fraction_bits)), ": the sign of a negative x is lost."),
        wrong(
            lambda x, fraction_bits: round(x, fraction_bits),
            ": round(x, n) keeps n decimal places, and fraction bits are places in base two.",
        ),
    ),
    hints=(
        "How far apart are the neighbours of x? Everything else follows from that step.",
        "Find the power of two below |x| with math.frexp, divide by the step, round to a whole number, multiply back.",
        "step = 2.0 ** (math.frexp(x)[1] - ___ - fraction_bits); Python's round() sends ties to the even side.",
    ),
    checked="numbers far from 1, ties on both sides, zero, negative numbers and 30 random ones.",
    tolerance=0,
)
