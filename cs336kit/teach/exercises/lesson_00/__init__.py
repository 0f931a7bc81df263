"""Exercises of lesson 00: napkin math."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

DAY = 86_400

# --- 00.1: days from the number on the datasheet ---------------------------------------------------------------------


def days(parameters, tokens, accelerators, sparse_peak, mfu):
    return 6 * parameters * tokens / (sparse_peak / 2 * mfu * accelerators * DAY)


def _days_cases():
    return [
        # An MFU of 0.5 would hide which half is missing, so the case that has it comes second.
        Case((8e9, 15e12, 384, 1979e12, 0.4), label="8B on 15T tokens"),
        Case((70e9, 15e12, 1024, 1979e12, 0.5), label="70B on 15T tokens"),
        Case((1.3e9, 26e9, 8, 624e12, 0.35), label="1.3B on 26B tokens, on A100s"),
    ]


_DAYS = Exercise(
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

# --- 00.2: gibibytes of an AdamW run ---------------------------------------------------------------------------------


def adamw_gib(parameters):
    return 16 * parameters / 2**30


_GIB = Exercise(
    id="00.2",
    reference=adamw_gib,
    cases=lambda: [
        Case((2**30,), label="2³⁰ parameters"),
        Case((124_439_808,), label="GPT-2"),
        Case((7_000_000_000,), label="7B parameters"),
    ],
    mistakes=(
        Mistake(
            lambda p: 16 * p / 1e9,
            "This is GB, not GiB: for {case} you returned {given}. A GiB is 2³⁰ bytes, 7.4 % more than 10⁹.",
        ),
        Mistake(
            lambda p: 16 * p, "These are bytes: for {case} you returned {given}. Divide by the bytes of one GiB, 2³⁰."
        ),
        Mistake(
            lambda p: 16 * p / 2**20,
            "These are MiB: for {case} you returned {given}, 1,024 times the GiB.",
        ),
        Mistake(
            lambda p: round(16 * p / 2**30, 2),
            "You rounded: for {case} you returned {given}, where {expected} is right. Round when you print, not before.",
        ),
        Mistake(
            lambda p: 4 * p / 2**30,
            "Only the weights are counted: for {case} you returned {given}, 4 bytes a parameter. A gradient and two "
            "moments stand beside each of them.",
        ),
        Mistake(
            lambda p: 8 * p / 2**30,
            "The optimizer is missing: for {case} you returned {given}, weights and gradients alone.",
        ),
        Mistake(
            lambda p: 12 * p / 2**30,
            "One of the four is missing: for {case} you returned {given}, 12 bytes a parameter. Count weight, gradient, "
            "first moment and second moment.",
        ),
        Mistake(
            lambda p: 16 * p // 2**30,
            "You rounded down to whole GiB: for {case} you returned {given}, where {expected} is right. Divide with /.",
        ),
    ),
    hints=(
        "How many numbers does AdamW keep for each parameter, counting the parameter itself?",
        "Four numbers of 4 bytes; then turn bytes into GiB by dividing by 2³⁰.",
        "return ___ * 4 * parameters / 2**___",
    ),
    checked="2³⁰ parameters, GPT-2 and 7B parameters, in GiB.",
)

# --- 00.3: the largest model -----------------------------------------------------------------------------------------


def largest(accelerators, memory_gb, bytes_per_parameter, sharded):
    return int((accelerators if sharded else 1) * memory_gb * 10**9 // bytes_per_parameter)


_LARGEST = Exercise(
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

# --- 00.4: how many accelerators for a deadline ----------------------------------------------------------------------


def accelerators_for(parameters, tokens, days, peak, mfu):
    return math.ceil(6 * parameters * tokens / (peak * mfu * DAY * days))


def _exact_share(parameters, tokens, days, peak, mfu):
    return 6 * parameters * tokens / (peak * mfu * DAY * days)


_DEADLINE = Exercise(
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

# --- 00.5: the largest model that a cluster can hold and train well --------------------------------------------------


def _by_compute(accelerators, days, peak, mfu, tokens_per_parameter):
    flops = accelerators * peak * mfu * DAY * days
    return math.sqrt(flops / (6 * tokens_per_parameter))


def affordable(accelerators, days, peak, mfu, memory_bytes, tokens_per_parameter=20):
    by_compute = _by_compute(accelerators, days, peak, mfu, tokens_per_parameter)
    by_memory = accelerators * memory_bytes / 16
    return int(min(by_compute, by_memory))


_AFFORDABLE = Exercise(
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

EXERCISES = (_DAYS, _GIB, _LARGEST, _DEADLINE, _AFFORDABLE)
