"""Exercise 00.4: how many accelerators for a deadline."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_00.units import DAY


def accelerators_for(parameters, tokens, days, peak, mfu):
    return math.ceil(6 * parameters * tokens / (peak * mfu * DAY * days))


def _exact_share(parameters, tokens, days, peak, mfu):
    return 6 * parameters * tokens / (peak * mfu * DAY * days)


EXERCISE = Exercise(
    id="00.4",
    reference=accelerators_for,
    cases=lambda: [
        Case((70e9, 15e12, 90, 989.5e12, 0.5), label="70B on 15T tokens in 90 days"),
        Case((8e9, 15e12, 30, 989.5e12, 0.4), label="8B on 15T tokens in 30 days"),
        Case((13e9, 1e12, 45, 989.5e12, 0.45), label="13B on 1T tokens in 45 days"),
        Case((1e9, 20e9, 30, 989.5e12, 0.4), label="1B on 20B tokens in 30 days"),
        Case((1e9, 86.4e9, 6, 1e15, 1), label="a deadline that one accelerator meets exactly"),
    ],
    mistakes=(
        Mistake(
            lambda *a: math.floor(_exact_share(*a)),
            "You rounded down: for {case} you returned {given}, and the deadline is missed. Round up.",
        ),
        Mistake(
            lambda *a: round(_exact_share(*a)),
            "You rounded to the nearest: for {case} you returned {given}, and the deadline is missed by a little. "
            "Round up.",
        ),
        Mistake(
            _exact_share,
            "A fraction of an accelerator cannot be had: for {case} you returned {given}. Round up to a whole one.",
        ),
        Mistake(
            lambda *a: math.floor(_exact_share(*a)) + 1,
            "You always add one: for {case} you returned {given}, where {expected} is enough. math.ceil leaves whole "
            "numbers alone.",
        ),
        Mistake(
            lambda p, n, d, peak, mfu: math.ceil(_exact_share(p, n, d, peak, 1)),
            "The MFU is missing: for {case} you returned {given}, as if each ran at its peak.",
        ),
        Mistake(
            lambda p, n, d, peak, mfu: math.ceil(_exact_share(p, n, d, peak / 2, mfu)),
            "You halved the peak: for {case} you returned {given}. This time it is the dense one already.",
        ),
        Mistake(
            lambda p, n, d, peak, mfu: math.ceil(_exact_share(p, n, d, peak, mfu) / 3),
            "This is the forward pass alone: for {case} you returned {given}. Training costs 6 FLOPs for each parameter "
            "and token.",
        ),
        Mistake(
            lambda p, n, d, peak, mfu: math.ceil(_exact_share(p, n, d, peak, mfu) * DAY),
            "Days and seconds are mixed: for {case} you returned {given}, 86,400 times too many. The peak is per second "
            "and the deadline in days.",
        ),
    ),
    hints=(
        "Turn the days formula around: the number of accelerators is what you do not know.",
        "FLOPs needed ÷ FLOPs that one accelerator delivers before the deadline, rounded up to a whole number.",
        "return math.ceil(6 * parameters * tokens / (peak * mfu * ___ * days))",
    ),
    checked="four deadlines, and one that is met exactly (where adding one is one too many).",
)
