"""Exercise 00.3: the largest model."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def largest(accelerators, memory_gb, bytes_per_parameter, sharded):
    return int((accelerators if sharded else 1) * memory_gb * 10**9 // bytes_per_parameter)


EXERCISE = Exercise(
    id="00.3",
    reference=largest,
    cases=lambda: [
        Case((8, 80, 16, True), label="8 × 80 GB, sharded"),
        Case((8, 80, 16, False), label="8 × 80 GB, replicated"),
        Case((5, 40, 12, True), label="5 × 40 GB at 12 bytes, sharded"),
        Case((7, 24, 18, True), label="7 × 24 GB at 18 bytes, sharded"),
        Case((16, 141, 12, False), label="16 × 141 GB at 12 bytes, replicated"),
    ],
    mistakes=(
        Mistake(
            lambda g, m, b, sharded: largest(g, m, b, True),
            "You pooled the memory although every accelerator holds a full copy: for {case} you returned {given}. A "
            "replica must fit in one of them.",
        ),
        Mistake(
            lambda g, m, b, sharded: largest(g, m, b, False),
            "You used the memory of one accelerator: for {case} you returned {given}. Sharded, they share one copy, and "
            "all their memory counts.",
        ),
        Mistake(
            lambda g, m, b, sharded: largest(g, m, b, not sharded),
            "The two cases are swapped: for {case} you returned {given}. Sharding is what makes the memories add up.",
        ),
        Mistake(
            lambda g, m, b, sharded: int((g if sharded else 1) * m * 2**30 // b),
            "You took GiB: for {case} you returned {given}. The argument is in GB, and a GB is 10⁹ bytes.",
        ),
        Mistake(
            lambda g, m, b, sharded: (g if sharded else 1) * m / b,
            "This is in billions: for {case} you returned {given}. GB over bytes gives 10⁹ parameters; return the "
            "parameters themselves, as an int.",
        ),
        Mistake(
            lambda g, m, b, sharded: math.ceil((g if sharded else 1) * m * 10**9 / b),
            "You rounded up: for {case} you returned {given}, and the last parameter does not fit. Round down.",
        ),
        Mistake(
            lambda g, m, b, sharded: round((g if sharded else 1) * m * 10**9 / b),
            "You rounded to the nearest: for {case} you returned {given}, and the last parameter does not fit. Round "
            "down.",
        ),
        Mistake(
            lambda g, m, b, sharded: (g if sharded else 1) * m * 10**9 / b,
            "A part of a parameter cannot be trained: for {case} you returned {given}. Return a whole number, rounded "
            "down.",
        ),
        Mistake(
            lambda g, m, b, sharded: (g if sharded else 1) * (m * 10**9 // b),
            "You rounded down on every accelerator and added afterwards: for {case} you returned {given}. Sharded, a "
            "parameter's bytes may lie on two of them: pool the memory, then divide.",
        ),
    ),
    hints=(
        "Whose memory must hold one full copy of everything: that of one accelerator, or of all together?",
        "Multiply the memory by the accelerators only if sharded; divide by the bytes per parameter; round down.",
        "return int((accelerators if ___ else 1) * memory_gb * ___ // bytes_per_parameter)",
    ),
    checked="8 × 80 GB sharded and replicated, two divisions that leave a rest, and 16 × 141 GB replicated.",
    tolerance=0,
)
