"""Exercises of lesson 00: napkin math."""

import math

from cs336kit.teach.exercises.core import exercise

DAY = 86_400  # seconds


def _share(parameters, tokens, days, peak, mfu):
    return 6 * parameters * tokens / (peak * mfu * DAY * days)


@exercise(
    "00.1",
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
        "right_if(tokens=tokens / 3)": "this is the forward pass alone, and backward takes twice as much again.",
    },
    hints=(
        "How many FLOPs does the run need, and how many can a single accelerator deliver before the deadline?",
        "One of the two, divided by the other, tells you how many of them you need; and nobody rents you half of one.",
    ),
    checked="four deadlines, and one that is met exactly (where adding one is one too many).",
)
def accelerators_for(parameters, tokens, days, peak, mfu):
    return math.ceil(_share(parameters, tokens, days, peak, mfu))


@exercise(
    "00.2",
    cases={
        "8 × 80 GB, 4 bytes on each and 12 split": (8, 80, 4, 12),
        "5 × 40 GB, 2 bytes on each and 12 split": (5, 40, 2, 12),
        "64 × 80 GB, 4 bytes on each and 12 split": (64, 80, 4, 12),
        "7 × 24 GB, 10 bytes on each and 8 split": (7, 24, 10, 8),
        "everything on each of 16 × 141 GB": (16, 141, 18, 0),
    },
    mistakes={
        "right_if(accelerators=1)": "nothing is split here, as if each accelerator held all of it.",
        "right_if(whole=0, split=whole + split)": "you split everything. The bytes in `whole` are on every accelerator.",
        "right_if(whole=split, split=whole)": "the two are swapped: `whole` stays on each, `split` is divided.",
        "right_if(memory_gb=memory_gb * 1.073741824)": "you took GiB. The argument is in GB, and a GB is 10⁹ bytes.",
        "right + 1": "you rounded up or to the nearest, and the last parameter does not fit. Round down.",
        "right_if(memory_gb=accelerators * memory_gb)": "you used the memory of all and split the bytes as well: one of "
        "the two says already that there are several.",
    },
    hints=(
        "Look at one accelerator only. How many bytes does each parameter cost it?",
        "With more and more accelerators one part of that cost disappears and the other does not change.",
    ),
    checked="four clusters in which some bytes are split, and one in which nothing is.",
    tolerance=0,
)
def largest(accelerators, memory_gb, whole, split):
    return int(memory_gb * 1e9 / (whole + split / accelerators))


@exercise(
    "00.3",
    cases={
        "8 accelerators, a week": (8, 7, 989.5e12, 0.5, 80e9, 20),
        "1,024 accelerators, 30 days": (1024, 30, 989.5e12, 0.4, 80e9, 20),
        "one 24 GB accelerator, a year": (1, 365, 989.5e12, 0.5, 24e9, 20),
        "64 accelerators, two weeks, 200 tokens for each parameter": (64, 14, 989.5e12, 0.5, 80e9, 200),
    },
    mistakes={
        "right_if(memory_bytes=math.inf)": "you forgot the memory: weights, gradients and averages do not fit.",
        "right_if(memory_bytes=memory_bytes / accelerators)": "that fits on one: sharded, all of them share the 16 bytes.",
        "right_if(peak=math.inf)": "memory alone, or no square root: with N = ratio · P the FLOPs grow with P · P.",
        "right_if(mfu=3 * mfu)": "you counted the forward pass alone. Training costs three times as much.",
        "right_if(ratio=20)": "you wrote 20 where the argument `ratio` belongs.",
        "right_if(ratio=1 / ratio)": "you multiplied by the ratio where it divides: more tokens leave a smaller model.",
        "right_if(ratio=1)": "you trained on one token for each parameter. The tokens grow with the parameters.",
    },
    hints=(
        "Two limits bind: what fits, and what can be trained in time. Work each of them out alone.",
        "The tokens are not given, but they follow from the parameters. Write the work with one unknown instead of two.",
    ),
    checked="two clusters limited by compute, one by memory, and another ratio of tokens to parameters.",
    tolerance=0,
)
def affordable(accelerators, days, peak, mfu, memory_bytes, ratio):
    in_time = math.sqrt(accelerators * peak * mfu * DAY * days / (6 * ratio))
    return int(min(in_time, accelerators * memory_bytes / 16))


def _days(accelerators, peak):
    return 6 * 13e9 * 260e9 / (accelerators * peak * 0.4 * DAY)


@exercise(
    "00.4",
    mistakes={
        "('A', ...)": "it would be the fastest, but without shards every card needs all 16 bytes of every parameter, and "
        "that is 208 GB.",
        "('B', ...)": "it fits, but look at the calendar: it needs more than 39 days.",
        "('C', _days(24, 1979e12))": "C is right, but there is a star behind its number of FLOP/s: find out what it means.",
        "('C', _days(24, 989.5e12) / 3)": "C is right, but that is the forward pass alone.",
        "('C', _days(24, 989.5e12) * 0.4)": "C is right, but nobody reaches the peak: divide by the MFU, too.",
    },
    hints=(
        "Two questions for each offer: does it fit, and is it done in time? One offer fails at each of them.",
        "For the first question, ask what the network allows. For the second, ask what a star on a datasheet means.",
    ),
    checked="A does not fit (208 GB on every card), B needs 39 days, and C is done in 24.7.",
    tolerance=0.03,
)
def offer():
    return "C", _days(24, 1979e12 / 2)
