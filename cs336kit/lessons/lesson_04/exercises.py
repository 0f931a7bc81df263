"""Exercises of lesson 04: copies, buffers, an allocator, and where a model should live."""

from itertools import accumulate

from cs336kit import predict
from cs336kit.teach.exercises.core import exercise


@exercise(
    "04.1",
    tolerance=7e-5,  # the next whole number of bytes is fine, and the one before does not reach the share
    cases={
        "10 µs, 63 GB/s, nine tenths": (1e-5, 63e9, 0.9),
        "10 µs, 63 GB/s, a half": (1e-5, 63e9, 0.5),
        "2 µs, 10 GB/s, a quarter": (2e-6, 10e9, 0.25),
        "no latency": (0.0, 3e9, 0.9),
    },
    mistakes={
        "latency * bandwidth": "this size always gets half of the bandwidth, whatever share you are asked for.",
        "latency * bandwidth * share": "you took the latency for the whole time, but moving the bytes takes time on top.",
        "latency * bandwidth / (1 - share)": "these bytes could move in the whole time, but none move during the latency.",
        "latency * bandwidth * (1 - share) / share": "you swapped the latency and the moving: a larger share needs more bytes.",
        "latency * bandwidth / share": "your size grows as the share falls, but a smaller share needs only a smaller copy.",
        "latency * share / (1 - share)": "these are the seconds that it takes to move the bytes. The answer is in bytes.",
    },
    hints=(
        "Which part of the whole time is spent on moving bytes, if the copy reaches that share of the bandwidth?",
        "Write down bytes ÷ seconds for the whole copy, set it equal to what is asked for, and solve for the bytes.",
    ),
    checked="nine tenths, a half and a quarter of the bandwidth, and a link without latency.",
)
def smallest_copy(latency, bandwidth, share):
    return latency * bandwidth * share / (1 - share)


def _ends(copies, computes, buffers, freed_at_begin=False):
    """When the computation of each batch ends."""
    freed, ends, link_free = [], [], 0
    for i, (copy, compute) in enumerate(zip(copies, computes, strict=True)):
        buffer_free = freed[i - buffers] if i >= buffers else 0
        link_free = max(link_free, buffer_free) + copy
        begin = max(link_free, ends[-1] if ends else 0)
        ends.append(begin + compute)
        freed.append(begin if freed_at_begin else ends[-1])
    return ends


def _fullest(copies, computes):
    """Batches on the device at once when nothing holds the copies back."""
    ends, starts = _ends(copies, computes, len(copies)), accumulate([0, *copies[:-1]])  # of computations, of copies
    return max(i + 1 - sum(end <= start for end in ends) for i, start in enumerate(starts))


def _never_waits(copies, computes):
    """The fewest buffers with which the computation never waits, or as many as there are batches."""
    soonest = copies[0] + sum(computes)
    fitting = (b for b in range(1, len(copies) + 1) if _ends(copies, computes, b)[-1] <= soonest)
    return next(fitting, len(copies))


@exercise(
    "04.2",
    cases={
        "six alike, 4 and 6 ms": ([4] * 6, [6] * 6),
        "six alike, 8 and 6 ms": ([8] * 6, [6] * 6),
        "one late batch": ([4, 4, 4, 4, 24, 4, 4, 4], [6] * 8),
        "a long and many short ones": ([2, 3, 3, 3, 3, 3, 3], [20, 1, 1, 1, 1, 1, 9]),
        "a single batch": ([5], [7]),
        "many different ones": ([3, 9, 2, 2, 8, 1, 1, 12, 3, 2], [5, 2, 9, 4, 1, 7, 3, 2, 8, 6]),
    },
    mistakes={
        "min(2, len(copies))": "two are enough where all batches are alike, but these are not.",
        _fullest: "that many fill up when nothing holds the copies back, but fewer may be enough.",
        "len(copies)": "with that many there is no limit at all. It ends as early as possible, but fewer are often enough.",
        "right_if(freed_at_begin=True)": "you freed a buffer when its computation begins, but it is read until the "
        "computation ends.",
        _never_waits: "you asked that the GPU never wait. With slow copies it waits with any number of buffers.",
        "right + 1": "that is one more than needed: the batch that is being computed sits in one of the buffers that you count.",
    },
    hints=(
        "When is the last batch done with a given number of buffers? The timetable above shows it for equal times.",
        "First find the end without a limit. Then try one buffer, two, three, until the end is the same.",
    ),
    checked="equal batches, slow copies, a late batch, a long one, a single one, and many different ones.",
)
def enough(copies, computes, *, freed_at_begin=False):
    best = _ends(copies, computes, len(copies))[-1]
    buffers = 1
    while _ends(copies, computes, buffers, freed_at_begin)[-1] > best:
        buffers += 1
    return buffers


def _reserved(events, *, choose=min, splits=True, joins=True, reuses=True, across=False, by_sum=False):
    """What an allocator takes, also without some of its rules.

    splits: a request leaves the rest of its block free; across: blocks of two segments are joined, too.
    """
    blocks, segments = [], 0  # [segment, owner or None, size], in order
    for kind, name, *size in events:
        if kind == "take":
            free = [block for block in blocks if block[1] is None]
            fitting = [block for block in free if block[2] >= size[0]]
            if by_sum and not fitting and sum(block[2] for block in free) >= size[0]:
                fitting = free
            if not fitting:
                blocks.append([segments, None, 20])
                segments += 1
                fitting = blocks[-1:]
            block = choose(fitting, key=lambda block: block[2])
            place, rest = blocks.index(block), block[2] - size[0]
            blocks[place : place + 1] = [[block[0], name, size[0]]]
            if rest > 0 and splits:
                blocks.insert(place + 1, [block[0], None, rest])
        else:
            for block in blocks:
                if block[1] == name and reuses:
                    block[1] = None
        if joins:
            blocks = _joined(blocks, across)
    return 20 * segments


def _last_of_equal(blocks, key):
    return min(reversed(blocks), key=key)


def _joined(blocks, across):
    joined = []
    for block in blocks:
        before = joined[-1] if joined else None
        if before and before[1] is None is block[1] and (across or before[0] == block[0]):
            joined[-1] = [before[0], None, before[2] + block[2]]
        else:
            joined.append(block)
    return joined


def _events(text):
    """Events from a short form: ``a6 b6 -a`` takes a and b, 6 MiB each, and frees a."""
    words = text.split()
    return [("free", word[1:]) if word[0] == "-" else ("take", word[0], int(word[1:])) for word in words]


@exercise(
    "04.3",
    cases={
        "one tensor": (_events("a4"),),
        "one tensor, freed": (_events("a4 -a"),),
        "taken, freed, and taken again": (_events("a4 -a b8 -b c4"),),
        "two that share a segment, twice": (_events("a8 b8 c8 d8"),),
        "a third that does not fit": (_events("a8 b8 c8 d8 e8"),),
        "freed and taken again": (_events("a8 b8 -a c8 -b d8 e4"),),
        "two free pieces that do not touch": (_events("a6 b6 c6 d2 -a -c e8"),),
        "free neighbors": (_events("a4 b4 c4 d8 -a -b e8"),),
        "free neighbors, right before left": (_events("a4 b4 c4 d8 -b -a e8"),),
        "a small free block and a large one": (_events("w8 x8 y4 a4 b2 c8 d6 -a -c e4 f8"),),
        "a large free block and a small one": (_events("w8 x8 y4 z8 v8 u4 a8 b2 c4 d6 -a -c e4 f8"),),
        "two equal free blocks, of which the first is needed whole": (_events("a2 b6 c4 d4 e8 f8 g4 -c h2 -b -d i8"),),
        "free pieces at the border of two segments": (_events("a8 b8 c4 d4 e8 f8 -c -d g8"),),
        "nothing": ([],),
    },
    mistakes={
        "_reserved(events, splits=False)": "a request took its whole block. What it does not need stays free.",
        "_reserved(events, joins=False)": "free blocks that touch each other were not joined.",
        "_reserved(events, choose=lambda blocks, key: blocks[0])": "you took the first free block that fits. A smaller one fit "
        "as well, and the large one was needed later.",
        "_reserved(events, choose=_last_of_equal)": "of equal free blocks you took the last. The task asks for the first.",
        "_reserved(events, choose=max)": "you took the largest free block. The smallest that fits saves the large ones for large "
        "requests.",
        "_reserved(events, reuses=False)": "freed blocks were not used again.",
        "_reserved(events, across=True)": "you joined blocks of two segments, but no tensor crosses that border.",
        "_reserved(events, by_sum=True)": "you added up all free bytes, but a tensor needs one piece.",
    },
    hints=(
        "Keep a list of blocks for each segment, in the order in which they lie there, with an owner or none.",
        "A request replaces one free block with two, the taken one and the rest. When a block is freed, look at both neighbors.",
    ),
    checked="blocks shared, freed and taken again, joined from both sides, the smallest that fits, and the borders of segments.",
)
def reserved(events):
    return _reserved(events)


#: The tokens with which an H100 computes as long as PCIe 5.0 copies, and how much slower that link is than an H200's memory.
_TO_HIDE = predict.accelerator("h100-sxm").peak("bf16") / predict.pcie_bandwidth(5)
_SLOWER = predict.accelerator("h200-sxm").bandwidth / predict.pcie_bandwidth(5)


@exercise(
    "04.4",
    mistakes={
        "('A', ..., ...)": "one token at a time gives the copies nothing to hide behind: 141 GB over 63 GB/s take two seconds.",
        "('B', ..., ...)": "a token passes the two halves one after the other, so both together read at the speed of one A100. "
        "Is there a machine that reads faster and holds it all? Print the memory_bytes of the H200.",
        "('C', 1000 * 141.1e9 / 4.8e12, ...)": "these are the milliseconds for one token. The task asks for tokens per second.",
        "('C', 141e9 / 4.8e12, ...)": "these are the seconds for one token. The task asks for tokens per second.",
        "('C', 4.8e12 / 70.55e9, ...)": "you read one byte for each parameter. In bf16 it has two.",
        "('C', 3.35e12 / 141.1e9, ...)": "this is what an H100 could read, but an H200 has a different bandwidth.",
        "('C', machine()[1], 1 + _TO_HIDE / 32768)": "copying and computing take turns in your A, but it has two buffers.",
        "('C', machine()[1], _TO_HIDE / 32768)": "this is a block's copy ÷ its computation. Which of them sets the pace?",
        "('C', machine()[1], 1 / machine()[2])": "this is C's time ÷ A's, but A is the one that waits. Turn it over.",
        "('C', machine()[1], _SLOWER)": "the link is that much slower than C's memory, but how long does a block compute?",
    },
    hints=(
        "Which machines hold 141.1 GB and 3 GB more? Look at what the driver reports, not at the label.",
        "For each offer, what is read from where for one token? And with 32,768 tokens, does a block take longer to copy or to "
        "compute? Section 3 has the formula for both.",
    ),
    checked="an H200 holds it all, and reads all of it for each token; A computes as fast, and waits for one block.",
    tolerance=0.01,  # as fast as C, 1.0, is near enough, and C ÷ A is not
)
def machine():
    weights = 2 * predict.parameters(predict.MODELS["llama-3-70b"]).total
    h100, h200 = map(predict.accelerator, ("h100-sxm", "h200-sxm"))
    copy = weights / 80 / predict.pcie_bandwidth(5)
    compute, at_c = (weights * 32768 / 80 / chip.peak("bf16") for chip in (h100, h200))
    read = predict.pipeline_seconds(80, copy_seconds=copy, compute_seconds=compute, overlap=True)
    return "C", h200.bandwidth / weights, read / (80 * at_c)
