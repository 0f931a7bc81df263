"""Exercise 00.5: the largest model that a cluster can hold and train well."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_00.units import DAY


def _by_compute(accelerators, days, peak, mfu, tokens_per_parameter):
    flops = accelerators * peak * mfu * DAY * days
    return math.sqrt(flops / (6 * tokens_per_parameter))


def affordable(accelerators, days, peak, mfu, memory_bytes, tokens_per_parameter=20):
    by_compute = _by_compute(accelerators, days, peak, mfu, tokens_per_parameter)
    by_memory = accelerators * memory_bytes / 16
    return int(min(by_compute, by_memory))


EXERCISE = Exercise(
    id="00.5",
    reference=affordable,
    cases=lambda: [
        Case((8, 7, 989.5e12, 0.5, 80e9), label="8 accelerators, a week"),
        Case((1024, 30, 989.5e12, 0.4, 80e9), label="1,024 accelerators, 30 days"),
        Case((1, 365, 989.5e12, 0.5, 24e9), label="one 24 GB accelerator, a year"),
        Case((64, 14, 989.5e12, 0.5, 80e9, 200), label="64 accelerators, two weeks, 200 tokens per parameter"),
    ],
    mistakes=(
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(_by_compute(g, d, peak, mfu, r)),
            "You forgot the memory: for {case} you returned {given}. The compute would do, but weights, gradients and "
            "moments do not fit: take the smaller of the two limits.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(g * m / 16),
            "You looked at memory alone, or left out the square root: for {case} you returned {given}. It fits, and the "
            "time does not suffice to train it. With N = ratio × P the FLOPs are 6 · ratio · P².",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(max(_by_compute(g, d, peak, mfu, r), g * m / 16)),
            "You took the larger of the two limits: for {case} you returned {given}. Both must hold.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, 3 * peak, mfu, r), g * m / 16)),
            "You counted 2 FLOPs per parameter and token, the forward pass alone: for {case} you returned {given}. "
            "Training costs 6.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak, mfu, 20), g * m / 16)),
            "You wrote 20 where the argument tokens_per_parameter belongs: for {case} you returned {given}.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: min(_by_compute(g, d, peak, mfu, r), g * m / 16),
            "A part of a parameter cannot be trained: for {case} you returned {given}. Return an int, rounded down.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak, 1, r), g * m / 16)),
            "The MFU is missing: for {case} you returned {given}, as if each ran at its peak.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak / DAY, mfu, r), g * m / 16)),
            "Days and seconds are mixed: for {case} you returned {given}. The peak is per second: a day has 86,400.",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak, mfu, 1), g * m / 16)),
            "You trained on one token for each parameter: for {case} you returned {given}. With N = ratio × P the FLOPs "
            "are 6 · ratio · P².",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak, mfu, 1 / r), g * m / 16)),
            "You multiplied by the ratio instead of dividing by it: for {case} you returned {given}. More tokens for "
            "each parameter leave fewer parameters. Mind the brackets: flops / (6 * ratio).",
        ),
        Mistake(
            lambda g, d, peak, mfu, m, r=20: int(min(_by_compute(g, d, peak, mfu, r), m / 16)),
            "You gave it the memory of one accelerator: for {case} you returned {given}. The problem says sharded.",
        ),
    ),
    hints=(
        "Two limits bind: what fits, and what can be trained in time. Which one is smaller?",
        "In 6·P·N replace N by ratio × P and solve for P; compare with accelerators × memory / 16.",
        "P = math.sqrt(flops / (6 * ___)); return int(min(P, ___ * memory_bytes / 16))",
    ),
    checked="two clusters limited by compute, one by memory, and another ratio of tokens to parameters.",
    tolerance=0,
)
