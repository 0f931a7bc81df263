"""Exercise 12.1: a lost update."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def is_lost(weight, update, fraction_bits):
    spacing = 2.0 ** (math.floor(math.log2(weight)) - fraction_bits)
    odd = round(weight / spacing) % 2
    return update < spacing / 2 or (update == spacing / 2 and not odd)


def _lost_cases():
    return [
        Case((1.0, 0.001, 7), label="weight 1, update 0.001 in bf16"),
        Case((1.0, 0.005, 7), label="weight 1, update 0.005 in bf16"),
        Case((1.0, 2.0**-8, 7), label="weight 1, update 2⁻⁸ in bf16, exactly half a spacing"),
        Case((1 + 2.0**-7, 2.0**-8, 7), label="weight 1 + 2⁻⁷, update 2⁻⁸ in bf16"),
        Case((1.9375, 0.0045, 7), label="weight 1.9375, update 0.0045 in bf16"),
        Case((0.015625, 0.00005, 7), label="weight 2⁻⁶, update 0.00005 in bf16"),
        Case((256.0, 0.9, 7), label="weight 256, update 0.9 in bf16"),
        Case((1.0, 0.001, 10), label="weight 1, update 0.001 in fp16"),
        Case((1.0, 0.001, 23), label="weight 1, update 0.001 in fp32"),
    ]


def _spacing(weight, fraction_bits):
    return 2.0 ** (math.floor(math.log2(weight)) - fraction_bits)


EXERCISE = Exercise(
    id="12.1",
    reference=is_lost,
    cases=_lost_cases,
    mistakes=(
        Mistake(
            lambda w, u, f: u < _spacing(w, f),
            "For {case} you returned {given}: you asked for a whole spacing. Rounding goes to the nearest, so more than "
            "half a spacing is enough to move the weight.",
        ),
        Mistake(
            lambda w, u, f: u < _spacing(w, f) / 2,
            "For {case} you returned {given}: exactly half a spacing is a tie. A tie goes to the even neighbour, and a "
            "weight whose last bit is 0 stays.",
        ),
        Mistake(
            lambda w, u, f: u <= _spacing(w, f) / 2,
            "For {case} you returned {given}: the tie goes to the even neighbour. This weight's last bit is 1, so it moves.",
        ),
        Mistake(
            lambda w, u, f: u <= 2.0**-f / 2,
            "For {case} you returned {given}: 2⁻ᶠ is the spacing at 1. It grows and shrinks with the weight's power of two.",
        ),
        Mistake(
            lambda w, u, f: u <= w * 2.0**-f / 2,
            "For {case} you returned {given}: the spacing does not grow with the weight itself. It is the same from one "
            "power of two to the next.",
        ),
        Mistake(lambda w, u, f: not is_lost(w, u, f), "For {case} you returned {given}: the other way round."),
    ),
    hints=(
        "How far is it from the weight to the next larger number of the format?",
        "The spacing is 2 ** (floor(log2(weight)) - fraction_bits). An update below half of it rounds back; a tie goes to "
        "the neighbour whose last bit is 0.",
        "odd = round(weight / spacing) % 2; return update < spacing / 2 or (update == spacing / 2 and ___)",
    ),
    checked="bf16, fp16 and fp32, weights from 2⁻⁶ to 256, and two exact ties.",
)
