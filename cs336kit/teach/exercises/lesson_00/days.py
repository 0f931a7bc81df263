"""Exercise 00.1: days from the number on the datasheet."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_00.units import DAY


def days(parameters, tokens, accelerators, sparse_peak, mfu):
    return 6 * parameters * tokens / (sparse_peak / 2 * mfu * accelerators * DAY)


def _days_cases():
    return [
        # An MFU of 0.5 would hide which half is missing, so the case that has it comes second.
        Case((8e9, 15e12, 384, 1979e12, 0.4), label="8B on 15T tokens"),
        Case((70e9, 15e12, 1024, 1979e12, 0.5), label="70B on 15T tokens"),
        Case((1.3e9, 26e9, 8, 624e12, 0.35), label="1.3B on 26B tokens, on A100s"),
    ]


EXERCISE = Exercise(
    id="00.1",
    reference=days,
    cases=_days_cases,
    mistakes=(
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, 2 * peak, mfu),
            "You used the sparse peak as it stands: for {case} you returned {given}, half of the days. Training "
            "multiplies dense matrices, and the dense peak is half of the sparse one.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, 4 * peak, mfu),
            "You doubled the sparse peak: for {case} you returned {given}, a quarter of the days. The dense peak is half "
            "of the sparse one.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, 1979e12, mfu),
            "You wrote the peak of an H100 where the argument sparse_peak belongs: for {case} you returned {given}.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: round(days(p, n, g, peak, mfu)),
            "You rounded to whole days: for {case} you returned {given}, where {expected} is right.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, peak, mfu) * DAY,
            "These are seconds: for {case} you returned {given}. A day has 86,400 of them.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, peak, mfu) * 24,
            "These are hours: for {case} you returned {given}, 24 times the days.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, peak, 1),
            "The MFU is missing: for {case} you returned {given}, as if every accelerator ran at its peak.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, peak, mfu) * mfu**2,
            "You multiplied by the MFU instead of dividing by it: for {case} you returned {given}. A lower MFU makes a "
            "run longer.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, g, peak, mfu) / 3,
            "This is the forward pass alone: for {case} you returned {given}, a third. Training costs 6 FLOPs for each "
            "parameter and token, not 2.",
        ),
        Mistake(
            lambda p, n, g, peak, mfu: days(p, n, 1, peak, mfu),
            "The number of accelerators is missing: for {case} you returned {given}, the time of one.",
        ),
    ),
    hints=(
        "How many FLOPs does the run need, and how many do the accelerators deliver in one day?",
        "Needed: 6 per parameter and token. Delivered: dense peak × MFU × accelerators × seconds in a day. Divide.",
        "return 6 * parameters * tokens / (sparse_peak / ___ * mfu * accelerators * ___)",
    ),
    checked="70B and 8B on 15T tokens on H100s and 1.3B on 26B tokens on A100s, each from the sparse peak.",
)
