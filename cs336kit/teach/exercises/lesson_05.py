"""Exercises of lesson 05: FLOPs and MFU."""

import math
import statistics
from fractions import Fraction

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 05.1: FLOPs of x @ w from the shapes ----------------------------------------------------------------------------


def product_flops(x_shape, w_shape):
    return 2 * math.prod(x_shape) * w_shape[-1]


_PRODUCT = Exercise(
    id="05.1",
    reference=product_flops,
    cases=lambda: [
        Case(((3, 5), (5, 7))),
        Case(((16, 32), (32, 2))),
        Case(((4, 8, 16, 32), (32, 2))),
        Case(((1, 1), (1, 9))),
    ],
    mistakes=(
        Mistake(
            lambda x, w: math.prod(x) * w[-1],
            "For {case} you returned {given}: that counts the multiplications alone. Each of them is followed by an add.",
        ),
        Mistake(
            lambda x, w: (2 * x[-1] - 1) * math.prod(x[:-1]) * w[-1],
            "For {case} you returned {given}: you left out the first add of each output, which adds to zero. That count "
            "is defensible, but the convention of the course, of the papers and of torch's counter is D multiplies and D "
            "adds.",
        ),
        Mistake(
            lambda x, w: 2 * x[-2] * x[-1] * w[-1],
            "For {case} you returned {given}: the leading axes are missing. Every matrix of the batch is multiplied.",
        ),
        Mistake(
            lambda x, w: 2 * math.prod(x) * math.prod(w),
            "For {case} you returned {given}: the inner axis stands in both shapes, and you counted it twice.",
        ),
        Mistake(
            lambda x, w: 2 * math.prod(x[:-1]) * w[-1],
            "For {case} you returned {given}: that is two FLOPs per output. Each output adds up as many products as the "
            "inner axis is long.",
        ),
    ),
    hints=(
        "How many numbers does the product have, and how much work is one of them?",
        "Outputs: the leading axes of x times the last axis of w. Work for each: one multiply and one add per inner index.",
        "return 2 * math.prod(x_shape) * w_shape[___]",
    ),
    checked="a small product, the lecture's (16,32) × (32,2), a batch with two leading axes, and a single row.",
)

# --- 05.2: MFU from the number on the slide --------------------------------------------------------------------------


def mfu(flops, seconds, sparse_peak, accelerators):
    return flops / seconds / (sparse_peak / 2 * accelerators)


_MFU = Exercise(
    id="05.2",
    reference=mfu,
    cases=lambda: [
        Case((2**43, 0.03216, 1979e12, 1), label="the lecture's product in bf16"),
        Case((6e15, 2.0, 624e12, 8), label="a step on 8 A100s"),
        Case((1e12, 0.5, 3958e12, 4), label="a small fp8 step on 4 H100s"),
    ],
    mistakes=(
        Mistake(
            lambda f, s, peak, g: f / s / (peak * g),
            "You divided by the sparse peak: for {case} you returned {given}. Your matrices are dense, and the dense peak "
            "is half of that number.",
        ),
        Mistake(
            lambda f, s, peak, g: f / s / (peak / 2),
            "Only one accelerator's peak is counted: for {case} you returned {given}. The promise grows with their number.",
        ),
        Mistake(
            lambda f, s, peak, g: 100 * mfu(f, s, peak, g),
            "This is a percentage: for {case} you returned {given}. MFU is a fraction; 0.5 is half of the peak.",
        ),
        Mistake(
            lambda f, s, peak, g: 1 / mfu(f, s, peak, g),
            "It is upside down: for {case} you returned {given}. Achieved stands above promised.",
        ),
        Mistake(
            lambda f, s, peak, g: f * s / (peak / 2 * g),
            "You multiplied by the seconds: for {case} you returned {given}. FLOPs per second are FLOPs divided by seconds.",
        ),
    ),
    hints=(
        "MFU compares two rates. Which one was achieved, and which one was promised for dense matrices?",
        "Achieved: FLOPs ÷ seconds. Promised: half of the sparse peak, times the number of accelerators.",
        "return flops / seconds / (sparse_peak / ___ * ___)",
    ),
    checked="the lecture's product, a step on 8 A100s and an fp8 step on 4 H100s.",
)

# --- 05.3: arithmetic intensity of a linear layer --------------------------------------------------------------------


def intensity(tokens, d_in, d_out, p):
    return 2 * tokens * d_in * d_out / (p * (tokens * d_in + d_in * d_out + tokens * d_out))


_INTENSITY = Exercise(
    id="05.3",
    reference=intensity,
    cases=lambda: [
        Case((1, 8192, 8192, 2), label="one token, D = 8192, bf16"),
        Case((4096, 4096, 4096, 2), label="4096 tokens, D = 4096, bf16"),
        Case((128, 512, 2048, 4), label="128 tokens, 512 to 2048, fp32"),
    ],
    mistakes=(
        Mistake(
            lambda n, d, f, p: intensity(n, d, f, p) / 2,
            "A factor of 2 is missing: for {case} you returned {given}, half of it. Each element pair is a multiply and an "
            "add.",
        ),
        Mistake(
            lambda n, d, f, p: intensity(n, d, f, p) * p,
            "These are FLOPs per element: for {case} you returned {given}. An element has p bytes.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n / p,
            "You counted the bytes of the weight alone: for {case} you returned {given}. That is the limit for few tokens; "
            "the input is read and the output written too.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n * d * f / (p * (n * d + d * f)),
            "The output is missing among the bytes: for {case} you returned {given}. It has to be written.",
        ),
        Mistake(
            lambda n, d, f, p: 1 / intensity(n, d, f, p),
            "This is bytes per FLOP: for {case} you returned {given}. Intensity is the other way round.",
        ),
    ),
    hints=(
        "Which three matrices cross between the chip and its memory?",
        "FLOPs: 2 · tokens · d_in · d_out. Bytes: p times the elements of input, weight and output. Divide.",
        "return 2 * tokens * d_in * d_out / (p * (tokens * d_in + ___ + ___))",
    ),
    checked="one token, 4096 tokens, and a widening layer in fp32.",
)

# --- 05.4: the smallest batch that is compute-bound ------------------------------------------------------------------


def smallest_batch(ridge, d, p):
    # 2Bd²/(p(2Bd + d²)) ≥ ridge, solved for B; Fractions, because a rounding error at the boundary costs a whole token.
    ridge = Fraction(ridge)
    below = 2 * d * d - 2 * p * d * ridge
    return None if below <= 0 else max(1, math.ceil(p * d * d * ridge / below))


def _floored(ridge, d, p):
    exact = smallest_batch(ridge, d, p)
    return exact if exact is None or exact == 1 else exact - 1


_BATCH = Exercise(
    id="05.4",
    reference=smallest_batch,
    cases=lambda: [
        Case((153, 8192, 2), label="an A100, D = 8192"),
        Case((295, 8192, 2), label="an H100, D = 8192"),
        Case((295, 4096, 2), label="an H100, D = 4096"),
        Case((295, 256, 2), label="an H100, D = 256"),
        Case((64, 512, 4), label="ridge 64, D = 512, fp32"),
        Case((1, 64, 2), label="a chip with ridge 1"),
    ],
    mistakes=(
        Mistake(
            lambda ridge, d, p: ridge * p // 2,
            "You counted the weight's bytes alone: for {case} you returned {given}. Then intensity is 2·tokens/p, which is "
            "a little too high: inputs and outputs cross too.",
        ),
        Mistake(
            _floored,
            "For {case} you returned {given}: one token short. At that batch the intensity is still below the ridge; round "
            "up.",
        ),
        Mistake(
            lambda ridge, d, p: smallest_batch(2 * ridge, d, p),
            "For {case} you returned {given}: the factor 2 of the FLOPs (a multiply and an add) is missing.",
        ),
        Mistake(
            lambda ridge, d, p: smallest_batch(ridge, d, 1),
            "For {case} you returned {given}: that is for elements of one byte. p bytes cross for each.",
        ),
        Mistake(
            lambda ridge, d, p: abs(smallest_batch(ridge, d, p) or -1),
            "For {case} you returned {given}: no batch reaches the ridge there. However many tokens, intensity stays below "
            "D/p; return None.",
        ),
    ),
    hints=(
        "As tokens grow, where does the intensity of a square layer go? Is the ridge always below that limit?",
        "Solve 2·B·D² ≥ ridge · p · (2·B·D + D²) for B. If the ridge is D/p or more, there is no answer: None. Round up.",
        "B ≥ ridge·p·D² / (2·D² − 2·p·D·ridge), so: math.ceil of that, or None where the denominator is ___ or less",
    ),
    checked="an A100 and an H100 at several widths, fp32, a layer too narrow for any batch, and a ridge of 1.",
)

# --- 05.5: report a timing -------------------------------------------------------------------------------------------


def report(times, warmup):
    kept = sorted(times[warmup:])
    return statistics.median(kept), kept[0], kept[-1]


_REPORT = Exercise(
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
    ),
    hints=(
        "Which of the times should nobody ever see, and what would one interrupted call do to a mean?",
        "Drop the first `warmup` times, in the order in which they were taken; then median, smallest, largest.",
        "kept = times[___:]; return statistics.median(kept), min(kept), ___",
    ),
    checked="slow first calls, an interrupted call, an even number of repeats and a single one.",
)

# --- 05.6: a chain of operations, fused or not -----------------------------------------------------------------------


def chain_seconds(steps, peak, bandwidth, fused):
    """steps: (flops, bytes read, bytes written) in order; each reads what the one before it wrote."""
    if not fused:
        return sum(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)
    return max(sum(f for f, _, _ in steps) / peak, (steps[0][1] + steps[-1][2]) / bandwidth)


_SOFTMAX = [(1e6, 2e6, 2e6), (1e6, 2e6, 2e6), (2e6, 2e6, 2e6)]
_MIXED = [(5e9, 1e6, 1e6), (1e6, 1e6, 1e6)]

_CHAIN = Exercise(
    id="05.6",
    reference=chain_seconds,
    cases=lambda: [
        Case((_SOFTMAX, 1e12, 1e12, False), label="three element-wise steps, one by one"),
        Case((_SOFTMAX, 1e12, 1e12, True), label="three element-wise steps, fused"),
        Case((_MIXED, 1e12, 1e12, False), label="a heavy step and a light one, one by one"),
        Case((_MIXED, 1e12, 1e12, True), label="a heavy step and a light one, fused"),
        Case(([(3e3, 1e3, 2e3)], 1e3, 1e3, True), label="a single step, fused"),
    ],
    mistakes=(
        Mistake(
            lambda steps, peak, bandwidth, fused: sum(f / peak + (r + w) / bandwidth for f, r, w in steps),
            "For {case} you returned {given}: computing and moving overlap, so a step takes the longer of the two and not "
            "their sum.",
        ),
        Mistake(
            lambda steps, peak, bandwidth, fused: chain_seconds(steps, peak, bandwidth, False),
            "For {case} you returned {given}, as if each step were a kernel of its own. Fused, what one step writes for the "
            "next never leaves the chip.",
        ),
        Mistake(
            lambda steps, peak, bandwidth, fused: max(
                sum(f for f, _, _ in steps) / peak, sum(r + w for _, r, w in steps) / bandwidth
            ),
            "For {case} you returned {given}: one maximum over all steps. Separate kernels wait for each other, so each has "
            "its own maximum; and a fused one moves only the first input and the last output.",
        ),
        Mistake(
            lambda steps, peak, bandwidth, fused: chain_seconds(steps, peak, bandwidth, True),
            "For {case} you returned {given}, the time of a fused kernel. One by one, every step reads and writes memory.",
        ),
    ),
    hints=(
        "What crosses to memory between two separate kernels, and what between two steps of one kernel?",
        "One by one: add up max(compute, memory) of each step. Fused: all FLOPs, but only the first read and the last write.",
        "fused: max(sum(f …) / peak, (steps[0][___] + steps[-1][___]) / bandwidth); else: sum(max(…, …) for …)",
    ),
    checked="element-wise chains and a mixed one, fused and not, and a single step.",
)

EXERCISES = (_PRODUCT, _MFU, _INTENSITY, _BATCH, _REPORT, _CHAIN)
