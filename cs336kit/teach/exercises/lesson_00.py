"""Exercises of lesson 00: napkin math."""

import math

from cs336kit.teach.exercises.core import exercise

DAY = 86_400  # seconds


@exercise(
    "00.1",
    # An MFU of 0.5 would hide which half is missing, so the case that has it comes second.
    cases={
        "8B on 15T tokens": (8e9, 15e12, 384, 1979e12, 0.4),
        "70B on 15T tokens": (70e9, 15e12, 1024, 1979e12, 0.5),
        "1.3B on 26B tokens, on A100s": (1.3e9, 26e9, 8, 624e12, 0.35),
    },
    mistakes={
        "right / 2": "half of the days. Training multiplies dense matrices, whose peak is half of the sparse one.",
        "right_if(sparse_peak=1979e12)": "you wrote the peak of an H100 where the argument sparse_peak belongs.",
        "right * DAY": "these are seconds. A day has 86,400 of them.",
        "right * mfu": "the MFU is missing, as if every accelerator ran at its peak.",
        "right * mfu**2": "you multiplied by the MFU instead of dividing by it. A lower MFU makes a run longer.",
        "right / 3": "this is the forward pass alone. Training costs 6 FLOPs for each parameter and token, not 2.",
    },
    hints=(
        "How many FLOPs does the run need, and how many do the accelerators deliver in one day?",
        "Needed: 6 per parameter and token. Delivered: dense peak × MFU × accelerators × seconds in a day. Divide.",
        "return 6 * parameters * tokens / (sparse_peak / ___ * mfu * accelerators * ___)",
    ),
    checked="70B and 8B on 15T tokens on H100s and 1.3B on 26B tokens on A100s, each from the sparse peak.",
)
def days(parameters, tokens, accelerators, sparse_peak, mfu):
    return 6 * parameters * tokens / (sparse_peak / 2 * mfu * accelerators * DAY)


@exercise(
    "00.2",
    cases={"2³⁰ parameters": (2**30,), "GPT-2": (124_439_808,), "7B parameters": (7_000_000_000,)},
    mistakes={
        "16 * parameters / 1e9": "this is GB, not GiB. A GiB is 2³⁰ bytes, 7.4 % more than 10⁹.",
        "16 * parameters": "these are bytes. Divide by the bytes of one GiB, 2³⁰.",
        "round(right, 2)": "you rounded. Round when you print, not before.",
        "right / 4": "only the weights are counted. A gradient and two moments stand beside each of them.",
        "right / 2": "the optimizer is missing: weights and gradients alone.",
        "right * 3 / 4": "one of the four is missing. Count weight, gradient, first moment and second moment.",
    },
    hints=(
        "How many numbers does AdamW keep for each parameter, counting the parameter itself?",
        "Four numbers of 4 bytes; then turn bytes into GiB by dividing by 2³⁰.",
        "return ___ * 4 * parameters / 2**___",
    ),
    checked="2³⁰ parameters, GPT-2 and 7B parameters, in GiB.",
)
def adamw_gib(parameters):
    return 16 * parameters / 2**30


@exercise(
    "00.3",
    cases={
        "8 × 80 GB, sharded": (8, 80, 16, True),
        "8 × 80 GB, replicated": (8, 80, 16, False),
        "5 × 40 GB at 12 bytes, sharded": (5, 40, 12, True),
        "7 × 24 GB at 18 bytes, sharded": (7, 24, 18, True),
        "16 × 141 GB at 12 bytes, replicated": (16, 141, 12, False),
    },
    mistakes={
        "right_if(sharded=True)": "you pooled the memory, but here every accelerator holds a full copy.",
        "right_if(sharded=False)": "you used the memory of one. Sharded, they share one copy: all memory counts.",
        "right_if(sharded=not sharded)": "the two cases are swapped. Sharding is what makes the memories add up.",
        "right_if(memory_gb=memory_gb * 1.073741824)": "you took GiB. The argument is in GB, and a GB is 10⁹ bytes.",
        "right + 1": "you rounded up or to the nearest, and the last parameter does not fit. Round down.",
        "right_if(accelerators=1) * (accelerators if sharded else 1)": "pool the memory first, then divide and round down.",
    },
    hints=(
        "Whose memory must hold one full copy of everything: that of one accelerator, or of all together?",
        "Multiply the memory by the accelerators only if sharded; divide by the bytes per parameter; round down.",
        "return int((accelerators if ___ else 1) * memory_gb * ___ // bytes_per_parameter)",
    ),
    checked="8 × 80 GB sharded and replicated, two divisions that leave a rest, and 16 × 141 GB replicated.",
    tolerance=0,
)
def largest(accelerators, memory_gb, bytes_per_parameter, sharded):
    return (accelerators if sharded else 1) * memory_gb * 10**9 // bytes_per_parameter


def _share(parameters, tokens, days, peak, mfu):
    return 6 * parameters * tokens / (peak * mfu * DAY * days)


@exercise(
    "00.4",
    cases={
        "70B on 15T tokens in 90 days": (70e9, 15e12, 90, 989.5e12, 0.5),
        "8B on 15T tokens in 30 days": (8e9, 15e12, 30, 989.5e12, 0.4),
        "13B on 1T tokens in 45 days": (13e9, 1e12, 45, 989.5e12, 0.45),
        "1B on 20B tokens in 30 days": (1e9, 20e9, 30, 989.5e12, 0.4),
        "a deadline that one accelerator meets exactly": (1e9, 86.4e9, 6, 1e15, 1),
    },
    mistakes={
        lambda *args: math.floor(_share(*args)): "you rounded down, and the deadline is missed. Round up.",
        _share: "a fraction of an accelerator cannot be had. Round up to a whole one.",
        lambda *args: math.floor(_share(*args)) + 1: "you always add one. math.ceil leaves whole numbers alone.",
        "right_if(mfu=1)": "the MFU is missing, as if each ran at its peak.",
        "right_if(peak=peak / 2)": "you halved the peak. This time it is the dense one already.",
        "right_if(tokens=tokens / 3)": "this is the forward pass alone. Training costs 6 FLOPs for each parameter and token.",
    },
    hints=(
        "Turn the days formula around: the number of accelerators is what you do not know.",
        "FLOPs needed ÷ FLOPs that one accelerator delivers before the deadline, rounded up to a whole number.",
        "return math.ceil(6 * parameters * tokens / (peak * mfu * ___ * days))",
    ),
    checked="four deadlines, and one that is met exactly (where adding one is one too many).",
)
def accelerators_for(parameters, tokens, days, peak, mfu):
    return math.ceil(_share(parameters, tokens, days, peak, mfu))


@exercise(
    "00.5",
    cases={
        "8 accelerators, a week": (8, 7, 989.5e12, 0.5, 80e9),
        "1,024 accelerators, 30 days": (1024, 30, 989.5e12, 0.4, 80e9),
        "one 24 GB accelerator, a year": (1, 365, 989.5e12, 0.5, 24e9),
        "64 accelerators, two weeks, 200 tokens per parameter": (64, 14, 989.5e12, 0.5, 80e9, 200),
    },
    mistakes={
        "right_if(memory_bytes=math.inf)": "you forgot the memory: weights, gradients and moments do not fit.",
        "right_if(peak=math.inf)": "memory alone, or no square root: with N = ratio × P the FLOPs are 6 · ratio · P².",
        "right_if(mfu=3 * mfu)": "you counted 2 FLOPs per parameter and token, the forward pass alone. Training costs 6.",
        "right_if(tokens_per_parameter=20)": "you wrote 20 where the argument tokens_per_parameter belongs.",
        "right_if(tokens_per_parameter=1 / tokens_per_parameter)": "you multiplied by the ratio: flops / (6 * ratio).",
        "right_if(tokens_per_parameter=1)": "you trained on one token for each parameter. N is ratio × P.",
    },
    hints=(
        "Two limits bind: what fits, and what can be trained in time. Which one is smaller?",
        "In 6·P·N replace N by ratio × P and solve for P; compare with accelerators × memory / 16.",
        "P = math.sqrt(flops / (6 * ___)); return int(min(P, ___ * memory_bytes / 16))",
    ),
    checked="two clusters limited by compute, one by memory, and another ratio of tokens to parameters.",
    tolerance=0,
)
def affordable(accelerators, days, peak, mfu, memory_bytes, tokens_per_parameter=20):
    by_compute = math.sqrt(accelerators * peak * mfu * DAY * days / (6 * tokens_per_parameter))
    return int(min(by_compute, accelerators * memory_bytes / 16))
