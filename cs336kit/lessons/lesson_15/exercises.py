"""Exercises of lesson 15: peak memory."""

import math
import operator

from cs336kit.teach.exercises.core import exercise


def _first_sizes(events):
    """The size that each name had when it was made for the first time."""
    return {name: size for name, size in reversed(events) if size is not None}


def _first_sizes_freed(events):
    sizes, alive, now, peak, names = _first_sizes(events), {}, 0, 0, []
    for name, size in events:
        if size is None:
            del alive[name]
            now -= sizes[name]
        else:
            alive[name] = size
            now += size
        if now > peak:
            peak, names = now, sorted(alive, key=alive.get, reverse=True)
    return peak, names


def _first_sizes_sorted(events):
    peak, names = at_peak(events, largest=False)
    return peak, sorted(names, key=_first_sizes(events).get, reverse=True)


@exercise(
    "15.1",
    cases={
        "three made, one freed": ([("a", 3), ("b", 5), ("a", None), ("c", 4)],),
        "nothing": ([],),
        "a peak that is reached twice": ([("a", 4), ("b", 2), ("a", None), ("c", 4), ("b", None)],),
        "a name that comes back larger": ([("x", 1), ("x", None), ("y", 4), ("x", 6), ("x", None), ("z", 5)],),
        "a name that comes back": ([("x", 9), ("x", None), ("w", 2), ("x", 3), ("w", None), ("x", None)],),
        "equal sizes": ([("q", 2), ("k", 2), ("s", 8), ("v", 2), ("s", None), ("o", 2)],),
    },
    mistakes={
        "right_if(freed=False)": "you never subtracted what was freed, so that is the sum of all that was ever made.",
        "right_if(higher=operator.ge)": "the peak is reached more than once. Take the tensors of the first time.",
        "right_if(largest=False)": "the peak is right, but the names should be in order of size, largest first.",
        "right_if(over=True)": "these names are alive at the end. The task asks for those at the moment of the peak.",
        _first_sizes_freed: "a name that comes back may have another size. You subtracted the size that it had first.",
        _first_sizes_sorted: "a name that comes back may have another size. You sorted by the size that it had first.",
        "right[0]": "you left out the names. Return the peak and the list of names.",
        "(max((size for _, size in events if size), default=0), right[1])": "that is the largest tensor. Add up all that are "
        "alive together.",
    },
    hints=(
        "Keep a dictionary of what is alive, and after each event ask for the sum of its values.",
        "When the sum is higher than ever before, note the names at once, because some of them are soon gone. Python's sort "
        "leaves equal ones in their order.",
    ),
    checked="no events, a peak that comes twice, a name that is used again, and equal sizes.",
)
def at_peak(events, *, higher=operator.gt, largest=True, freed=True, over=False):
    alive, peak, names = {}, 0, []
    for name, size in events:
        if size is not None:
            alive[name] = size
        elif freed:
            del alive[name]
        now = sum(alive.values())
        if higher(now, peak):
            peak = now
            names = sorted(alive, key=alive.get, reverse=True) if largest else list(alive)
    return peak, list(alive) if over else names


@exercise(
    "15.2",
    tolerance=0.01,
    mistakes={
        "('a', ...)": "a loss is one number, and its graph is freed by backward. Look at the largest tensors, not at the oldest.",
        "('c', ...)": "the old gradients are freed before the backward pass anyway, and the peak comes later.",
        "('d', ...)": "that changes only the optimizer's temporary tensors, and does nothing about the peak.",
        "('b', 18.17)": "b is right, but that is how much was asked for when it stopped. What is the peak after the change?",
        "('b', 16.0)": "b is right, but 16.0 is all the room there is, and 15.9 is the peak in MB. What is it in MiB?",
        "('b', 12.38)": "b is right, but you left out the state of AdamW, which exists from the end of the first step on.",
    },
    hints=(
        "How many tensors of the size of the logits are alive when it stops, and how many should there be at the loss?",
        "For each of the largest tensors, find the name or the node that still refers to it. Then make the change and run the "
        "loop on the device: its course has the peak.",
    ),
    checked="change (b), and a peak of 15.17 MiB: without a name, the logits are freed before the backward pass.",
)
def out_of_memory():
    return "b", 15.17


_SIZES = (
    (12, 1, 16),
    (96, 1, 1),
    (100, 1, 4),
    (10, 10, 1),
    (32, 1, 34),
    (80, 50, 3),
    (1, 5, 5),
    (7, 20, 1),
    (7, 20, 10),
)


@exercise(
    "15.3",
    cases=[*_SIZES, (3, 3, 2), (20, 3, 2), (8, 12, 1), (50, 1, 2)],
    mistakes={
        "1": "you keep the input of every block. When inputs are large and blocks small, longer segments are better.",
        "blocks": "all k blocks of a segment are alive at once while it is computed again, and yours has all blocks.",
        "max(1, round(blocks**0.5))": "√L is right only when a block keeps as much as its input. Weigh both.",
        "min(blocks, max(1, round((blocks * input_bytes / block_bytes) ** 0.5)))": "segments are whole: try every k from 1 to L.",
        "min(range(1, blocks + 1), key=lambda k: blocks // k * input_bytes + k * block_bytes)": "a last, shorter segment has an "
        "input, too.",
        "min(range(blocks, 0, -1), key=lambda k: -(-blocks // k) * input_bytes + k * block_bytes)": "if several are equal, take "
        "the smallest.",
    },
    hints=(
        "For one k, how many segments are there, and how many blocks are alive while one segment is computed again?",
        "Write a function for the memory at one k, and let Python try every k. There is a formula with a root for segments that "
        "need not be whole, but it only tells you whether your answer is plausible.",
    ),
    checked="blocks much larger than their inputs, as large, and smaller; segments that do not divide the blocks; one block.",
)
def interval(blocks, input_bytes, block_bytes):
    return min(range(1, blocks + 1), key=lambda k: -(-blocks // k) * input_bytes + k * block_bytes)


class Machine:
    """Runs a batch and says whether it fitted, and counts how often it was asked."""

    def __init__(self, most: int):
        self.most, self.tries, self.strange = most, 0, False

    def __call__(self, batch: int) -> bool:
        self.tries += 1
        self.strange |= not isinstance(batch, int) or batch < 1
        if self.tries > 10_000:
            raise RuntimeError("more than 10,000 tries")
        return batch <= self.most

    def __repr__(self) -> str:
        return f"a machine on which {self.most} fit"


def _searched(result, args):
    (machine,) = args
    allowed = 2 * math.log2(max(1, machine.most)) + 3
    tries = "few" if machine.tries <= allowed else "too many"
    return {"result": result, "tries": "one with a batch below 1" if machine.strange else tries}


def _one_by_one(fits):
    batch = 0
    while fits(batch + 1):
        batch += 1
    return batch


def _powers(fits):
    batch = 1
    while fits(batch):
        batch *= 2
    return batch // 2


def _halving(fits, low=0, high=2**16):
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@exercise(
    "15.4",
    mistakes={
        "('A', ...)": "without any of them only three sequences fit.",
        "('C', ...)": "that is enough, but the blocks are computed once more, a fifth of the step's FLOPs. Is there a "
        "cheaper one?",
        "('D', ...)": "with both, far more fit than you need, and you pay for both.",
        "('B', 7)": "B is right, but you filled the whole label. What does the rule of lesson 00 leave free?",
        "('B', 5)": "B is right, but you took autocast over fp32 weights. The precision here is called mixed.",
        "('B', 1)": "B is right, but your weights are in fp32 or attention is written out. Say precision, attention and device.",
    },
    hints=(
        "Four calls of predict.largest_batch, of which two are enough. Which of its arguments have a default that "
        "you do not want?",
        "config is predict.MODELS['llama-3.2-1b'], and memory_bytes nine tenths of 80 · 10⁹. Of what fits, ask what is computed "
        "twice: the head, or the blocks.",
    ),
    checked="8 chunks, in which 6 sequences fit: a second product with the head, about 6 % of the step's FLOPs.",
)
def with_least_work():
    return "B", 6


@exercise(
    "15.5",
    cases={f"{most} fit": (Machine(most),) for most in (0, 1, 2, 3, 6, 7, 8, 90, 1000, 4095)},
    observe=_searched,
    mistakes={
        _one_by_one: "the number is right, but going up one by one takes as many tries as the batch is large.",
        _powers: "that is the largest power of two that fits. There may be room for more.",
        _halving: "your own first bound costs many tries for a small batch, and may be too low for a large one.",
        "at_most(fits) + 1": "that is the smallest batch that does not fit.",
    },
    hints=(
        "First find any batch that does not fit, quickly, with steps that grow.",
        "Now you have one that fits and one that does not. Try the one in the middle, and keep one of each kind until the two "
        "are neighbors.",
    ),
    checked="machines on which 0 to 4,095 sequences fit, and the number of tries.",
)
def at_most(fits):
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    return _halving(fits, low, high)
