"""Exercises of lesson 07: time, MFU and the roofline."""

import math
import statistics

from cs336kit.teach.exercises.core import exercise


@exercise(
    "07.1",
    cases={
        "the lecture's product in bf16": (2**43, 0.03216, 1979e12, 1),
        "a step on 8 A100s": (6e15, 5.0, 624e12, 8),
        "a small fp8 step on 4 H100s": (1e12, 0.5, 3958e12, 4),
    },
    mistakes={
        "right / 2": "you divided by the sparse peak. Your matrices are dense, and the dense peak is half of that number.",
        "right_if(accelerators=1)": "only one accelerator's peak is counted. The promise grows with their number.",
        "100 * right": "this is a percentage. MFU is a fraction; 0.5 is half of the peak.",
        "1 / right": "it is upside down. Achieved stands above promised.",
        "flops / seconds": "this is the FLOP/s achieved. MFU is a fraction of what was promised.",
        "right * seconds": "this is a time, the seconds that the FLOPs would take at the peak.",
    },
    hints=(
        "MFU compares two rates. Which one was achieved, and which one was promised for dense matrices?",
        "Achieved: FLOPs ÷ seconds. Promised: half of the sparse peak, times the number of accelerators.",
        "return flops / seconds / (sparse_peak / ___ * ___)",
    ),
    checked="the lecture's product, a step on 8 A100s and an fp8 step on 4 H100s.",
)
def mfu(flops, seconds, sparse_peak, accelerators):
    return flops / seconds / (sparse_peak / 2 * accelerators)


@exercise(
    "07.2",
    cases={
        "one token, D = 8192, bf16": (1, 8192, 8192, 2),
        "4096 tokens, D = 4096, bf16": (4096, 4096, 4096, 2),
        "128 tokens, 512 to 2048, fp32": (128, 512, 2048, 4),
    },
    mistakes={
        "right / 2": "a factor of 2 is missing. Each element pair is a multiply and an add.",
        "right * p": "these are FLOPs per element. An element has p bytes.",
        "2 * tokens / p": "that counts the weight's bytes alone. The input is read and the output written too.",
        "2 * tokens * d_in * d_out / (p * d_in * (tokens + d_out))": "the output is missing among the bytes. It is written.",
        "2 * tokens * d_in * d_out / (p * d_out * (tokens + d_in))": "the input is missing among the bytes. It is read.",
        "1 / right": "this is bytes per FLOP. Intensity is the other way round.",
    },
    hints=(
        "Which three matrices cross between the chip and its memory?",
        "FLOPs: 2 · tokens · d_in · d_out. Bytes: p times the elements of input, weight and output. Divide.",
        "return 2 * tokens * d_in * d_out / (p * (tokens * d_in + ___ + ___))",
    ),
    checked="one token, 4096 tokens, and a widening layer in fp32.",
)
def intensity(tokens, d_in, d_out, p):
    return 2 * tokens * d_in * d_out / (p * (tokens * d_in + d_in * d_out + tokens * d_out))


@exercise(
    "07.3",
    cases={
        "an A100, D = 8192": (153, 8192, 2),
        "an H100, D = 8192": (295, 8192, 2),
        "an H100, D = 4096": (295, 4096, 2),
        "an H100, D = 256": (295, 256, 2),
        "ridge 64, D = 512, fp32": (64, 512, 4),
        "a chip with ridge 1": (1, 64, 2),
        "a ridge of exactly D/p": (32, 64, 2),
        "a ridge just below D/p": (32 - 2**-9, 64, 2),
        "a ridge that one token passes": (0.25, 64, 2),
        "a chip without a ridge": (0, 64, 2),
    },
    mistakes={
        "ridge * p // 2": "you counted the weight's bytes alone. Inputs and outputs cross too.",
        "right and (right - 1 or 1)": "one token short. At that batch the intensity is still below the ridge; round up.",
        "right_if(ridge=2 * ridge)": "the factor 2 of the FLOPs (a multiply and an add) is missing.",
        "right_if(p=2) if p != 2 else right_if(p=1)": "that is for elements of another size; here they have p bytes.",
        "right or math.ceil(p * d * d * ridge / (2 * d * (d - p * ridge) or -1))": "no batch reaches a ridge of D/p: None.",
        "right or 0": "no batch reaches the ridge there. Return None, which is not the number 0.",
    },
    hints=(
        "As tokens grow, where does the intensity of a square layer go? Is the ridge always below that limit?",
        "Solve 2·B·D² ≥ ridge · p · (2·B·D + D²) for B. If the ridge is D/p or more, there is no answer: None. Round up.",
        "B ≥ ridge·p·D² / (2·D² − 2·p·D·ridge), so: math.ceil of that, or None where the denominator is ___ or less",
    ),
    checked="an A100 and an H100 at several widths, fp32, a layer too narrow for any batch, and a ridge of 1.",
)
def smallest_batch(ridge, d, p):
    # 2Bd²/(p(2Bd + d²)) ≥ ridge, solved for B.
    below = 2 * d * (d - p * ridge)
    return None if below <= 0 else max(1, math.ceil(p * d * d * ridge / below))


@exercise(
    "07.4",
    cases={
        "two slow first calls": ([9.0, 5.0, 1.0, 1.2, 1.1, 1.3, 1.1], 2),
        "one call interrupted": ([1.0, 1.1, 40.0, 1.2, 1.05], 0),
        "an even number of repeats": ([7.0, 2.0, 4.0, 3.0, 1.0], 1),
        "a single repeat": ([3.0, 3.0], 1),
    },
    mistakes={
        "right_if(warmup=0)": "the warm-up calls are still in. They pay for compilation and caches.",
        "(statistics.mean(times[warmup:]), *right[1:])": "the first number is the mean, which one interrupted call moves.",
        "right_if(times=sorted(times))": "you sorted before dropping the warm-up, and threw the fastest calls away.",
        "(sorted(times[warmup:])[(len(times) - warmup) // 2], *right[1:])": "between two in the middle, take half way.",
        "(right[1], *right[1:])": "the first number is the fastest call, what a quiet machine can do once.",
        "(right[0], *right_if(warmup=0)[1:])": "the smallest or the largest is a warm-up call. Drop them before everything else.",
    },
    hints=(
        "Which of the times should nobody ever see, and what would one interrupted call do to a mean?",
        "Drop the first `warmup` times, in the order in which they were taken; then median, smallest, largest.",
        "kept = times[___:]; return statistics.median(kept), min(kept), ___",
    ),
    checked="slow first calls, an interrupted call, an even number of repeats and a single one.",
)
def report(times, warmup):
    kept = times[warmup:]
    return statistics.median(kept), min(kept), max(kept)


def _fused(bytes_moved):
    """The right answer, but for the bytes of the fused kernel."""

    def wrong(steps, peak, bandwidth, fused):
        if not fused:
            return chain_seconds(steps, peak, bandwidth, False)
        return max(sum(f for f, _, _ in steps) / peak, bytes_moved(steps) / bandwidth)

    return wrong


_SOFTMAX = [(1e6, 2e6, 2e6), (1e6, 2e6, 2e6), (2e6, 2e6, 2e6)]


_MIXED = [(5e9, 1e6, 1e6), (1e6, 1e6, 1e6)]


#: It widens and narrows, so that no two of its reads and writes are alike.
_UNEVEN = [(5e5, 3e6, 9e6), (1e6, 9e6, 5e6), (5e5, 5e6, 8e6)]


@exercise(
    "07.5",
    cases={
        "three element-wise steps, one by one": (_SOFTMAX, 1e12, 1e12, False),
        "three element-wise steps, fused": (_SOFTMAX, 1e12, 1e12, True),
        "a heavy step and a light one, one by one": (_MIXED, 1e12, 1e12, False),
        "a heavy step and a light one, fused": (_MIXED, 1e12, 1e12, True),
        "steps of uneven bytes, fused": (_UNEVEN, 1e12, 1e12, True),
        "steps of uneven bytes, one by one": (_UNEVEN, 1e12, 1e12, False),
        "steps of uneven bytes with fast memory, fused": (_UNEVEN, 1e12, 1e13, True),
        "a single step, fused": ([(3e3, 1e3, 2e3)], 1e3, 1e3, True),
    },
    mistakes={
        "sum(f / peak + (r + w) / bandwidth for f, r, w in steps)": "computing and moving overlap: take the longer, not the sum.",
        "right_if(fused=False)": "that is for separate kernels. Fused, what one step writes for the next stays on the chip.",
        "right_if(fused=True)": "that is the time of a fused kernel. One by one, every step reads and writes memory.",
        "max(sum(f for f, _, _ in steps) / peak, sum(r + w for _, r, w in steps) / bandwidth)": "separate kernels "
        "have a maximum each, and a fused one moves only the first input and the last output.",
        "max(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)": "you took the longest step, and all of them run.",
        _fused(lambda steps: steps[0][1]): "the last write is missing. The result has to reach memory.",
    },
    hints=(
        "What crosses to memory between two separate kernels, and what between two steps of one kernel?",
        "One by one: add up max(compute, memory) of each step. Fused: all FLOPs, but only the first read and the last write.",
        "fused: max(sum(f …) / peak, (steps[0][___] + steps[-1][___]) / bandwidth); else: sum(max(…, …) for …)",
    ),
    checked="element-wise chains, a mixed one and an uneven one, fused and not, with slow and fast memory, and a single step.",
)
def chain_seconds(steps, peak, bandwidth, fused):
    """steps: (flops, bytes read, bytes written) in order; each reads what the one before it wrote."""
    if not fused:
        return sum(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)
    return max(sum(f for f, _, _ in steps) / peak, (steps[0][1] + steps[-1][2]) / bandwidth)
