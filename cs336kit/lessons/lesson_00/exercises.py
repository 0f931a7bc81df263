"""Exercises of lesson 00: napkin math."""

import math

from cs336kit.teach.exercises.core import exercise

DAY = 86_400  # seconds


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
        "right_if(whole=math.floor)": "you rounded down, so the deadline is missed. Round up.",
        "right_if(whole=float)": "you cannot rent a fraction of an accelerator. Round up to a whole one.",
        "right_if(whole=lambda share: math.floor(share) + 1)": "you always add one, even to a whole number. math.ceil leaves "
        "those alone.",
        "right_if(mfu=1)": "you left out the MFU, as if each accelerator ran at its peak.",
        "right_if(mfu=1 / mfu)": "your MFU is on the wrong side: a lower one takes more accelerators, not fewer.",
        "right_if(peak=peak / 2)": "you halved the peak, but this one is the dense peak already.",
        "right_if(tokens=tokens / 3)": "this is the forward pass alone. The backward pass takes twice as much on top.",
    },
    hints=(
        "How many FLOPs does the run need, and how many can a single accelerator deliver before the deadline?",
        "Divide one of the two by the other to find how many of them you need; and nobody rents you half of one.",
    ),
    checked="four deadlines, and one that is met exactly (where adding one is one too many).",
)
def accelerators_for(parameters, tokens, days, peak, mfu, *, whole=math.ceil):
    return whole(6 * parameters * tokens / (peak * mfu * DAY * days))


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
        "right_if(accelerators=1)": "you split nothing, as if each accelerator held all of it.",
        "right_if(whole=0, split=whole + split)": "you split everything. The bytes in `whole` are on every accelerator.",
        "right_if(whole=split, split=whole)": "the two are swapped: `whole` stays on each, `split` is divided.",
        "right_if(memory_gb=memory_gb * 1.073741824)": "you took GiB. The argument is in GB, and a GB is 10⁹ bytes.",
        "right + 1": "you rounded up or to the nearest number, so the last parameter does not fit. Round down.",
        "right_if(memory_gb=accelerators * memory_gb)": "you added up the memory of all accelerators and split the bytes as "
        "well, which counts them twice. Look at one of them.",
    },
    hints=(
        "Look at one accelerator only. How many bytes does each parameter cost it?",
        "As you add accelerators, one part of that cost goes toward zero and the other stays the same.",
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
        "right_if(limit=max)": "you took the larger of the two limits, but the model has to keep to both.",
        "right_if(memory_bytes=math.inf)": "you forgot the memory: weights, gradients and averages do not fit.",
        "right_if(memory_bytes=memory_bytes / accelerators)": "that fits on one accelerator. Sharded, all of them share the "
        "16 bytes.",
        "right_if(peak=math.inf)": "you forgot the time, or a square root: with N = ratio · P the FLOPs grow with P · P. Without "
        "the root the time allows billions of times as many parameters, so the memory alone decides.",
        "int(accelerators * peak * mfu * DAY * days / (6 * ratio))": "that is P · P, for with N = ratio · P the FLOPs grow "
        "with P · P. Take the square root (and the memory is a limit, too).",
        "right_if(mfu=3 * mfu)": "you counted the forward pass alone. Training costs three times as much.",
        "right_if(ratio=20)": "you wrote 20 where the argument `ratio` belongs.",
        "right_if(ratio=1 / ratio)": "you multiplied by the ratio where it divides: more tokens leave a smaller model.",
    },
    hints=(
        "There are two limits: what fits, and what can be trained in time. Work out each of them alone.",
        "The tokens are not given, but they follow from the parameters. Write the work with one unknown instead of two.",
    ),
    checked="two clusters limited by compute, one by memory, and another ratio of tokens to parameters.",
    tolerance=0,
)
def affordable(accelerators, days, peak, mfu, memory_bytes, ratio, *, limit=min):
    in_time = math.sqrt(accelerators * peak * mfu * DAY * days / (6 * ratio))
    return int(limit(in_time, accelerators * memory_bytes / 16))


def _days(accelerators, peak):
    return 6 * 13e9 * 260e9 / (accelerators * peak * 0.4 * DAY)


@exercise(
    "00.4",
    mistakes={
        "('A', ...)": "A would be the fastest, but without shards every card needs all 16 bytes of every parameter, 208 GB.",
        "('B', ...)": "B fits, but look at the calendar: it needs more than 39 days.",
        "('C', _days(24, 1979e12))": "C is right, but there is a star behind its number of FLOP/s: find out what it means.",
        "('C', _days(24, 989.5e12) / 3)": "C is right, but that is the forward pass alone.",
        "('C', _days(24, 989.5e12) * 8 / 6)": "C is right, but the MFU of 0.4 is one with checkpointing already.",
        "('C', _days(24, 989.5e12) * 0.4)": "C is right, but nobody reaches the peak: divide by the MFU, too.",
    },
    hints=(
        "Ask two questions about each offer: does it fit, and is it done in time? One offer fails each of them.",
        "For the first question, ask what the network allows. For the second, ask what a star on a datasheet means.",
    ),
    checked="A does not fit (208 GB on every card), B needs 39 days, and C is done in 24.7.",
    tolerance=0.03,
)
def offer():
    return "C", _days(24, 1979e12 / 2)
