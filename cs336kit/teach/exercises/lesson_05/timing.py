"""Exercise 05.5: report a timing."""

import statistics

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def report(times, warmup):
    kept = sorted(times[warmup:])
    return statistics.median(kept), kept[0], kept[-1]


REPORT = Exercise(
    id="05.5",
    reference=report,
    cases=lambda: [
        Case(([9.0, 5.0, 1.0, 1.2, 1.1, 1.3, 1.1], 2), label="two slow first calls"),
        Case(([1.0, 1.1, 40.0, 1.2, 1.05], 0), label="one call interrupted"),
        Case(([7.0, 2.0, 4.0, 3.0, 1.0], 1), label="an even number of repeats"),
        Case(([3.0, 3.0], 1), label="a single repeat"),
    ],
    mistakes=(
        Mistake(
            lambda times, warmup: report(times, 0),
            "The warm-up calls are still in: for {case} you returned {given}. They pay for compilation and caches.",
        ),
        Mistake(
            lambda times, warmup: (statistics.mean(times[warmup:]), min(times[warmup:]), max(times[warmup:])),
            "The first number is the mean: for {case} you returned {given}. One interrupted call moves a mean and leaves a "
            "median alone.",
        ),
        Mistake(
            lambda times, warmup: report(sorted(times), warmup),
            "You sorted before dropping the warm-up: for {case} you returned {given}. Then the fastest calls are thrown "
            "away, not the first ones.",
        ),
        Mistake(
            lambda times, warmup: (sorted(times[warmup:])[len(times[warmup:]) // 2], *report(times, warmup)[1:]),
            "For {case} you returned {given}: with an even number of repeats the median lies halfway between the two in "
            "the middle.",
        ),
        Mistake(
            lambda times, warmup: (min(times[warmup:]),) * 2 + (max(times[warmup:]),),
            "The first number is the fastest call: for {case} you returned {given}. It is what a quiet machine can do once, "
            "not what it usually does.",
        ),
        Mistake(
            lambda times, warmup: (report(times, warmup)[0], *report(times, 0)[1:]),
            "The smallest or the largest is a warm-up call: for {case} you returned {given}. Drop them before everything else.",
        ),
        Mistake(
            lambda times, warmup: tuple(report(times, warmup)[place] for place in (0, 2, 1)),
            "Smallest and largest are exchanged: for {case} you returned {given}.",
        ),
        Mistake(
            lambda times, warmup: tuple(report(times, warmup)[place] for place in (1, 0, 2)),
            "The order is median, smallest, largest: for {case} you returned {given}.",
        ),
        Mistake(
            lambda times, warmup: (times[warmup:][len(times[warmup:]) // 2], *report(times, warmup)[1:]),
            "You took the middle of the times as they came: for {case} you returned {given}. A median is the middle of the "
            "sorted ones.",
        ),
    ),
    hints=(
        "Which of the times should nobody ever see, and what would one interrupted call do to a mean?",
        "Drop the first `warmup` times, in the order in which they were taken; then median, smallest, largest.",
        "kept = times[___:]; return statistics.median(kept), min(kept), ___",
    ),
    checked="slow first calls, an interrupted call, an even number of repeats and a single one.",
)
