"""Exercises of lesson 07: time, MFU and the roofline."""

import math
import statistics

from cs336kit.teach.exercises.core import exercise


@exercise(
    "07.1",
    # In floats, the difference of two nearly equal numbers may miss a huge batch by one.
    observe=lambda tokens, args: float(tokens) if tokens and tokens > 1e5 else tokens,
    tolerance=1e-5,
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
        "a ridge of 0": (0, 64, 2),
    },
    mistakes={
        "ridge * p // 2": "you counted the weight's bytes alone. Inputs and outputs are moved, too.",
        "right and (right - 1 or 1)": "that is one token short: its intensity is still below the ridge. Round up.",
        "None if right and right > d else right": "a batch does reach the ridge here, a large one. None is for a ridge that no "
        "batch reaches, so do not give up at some number.",
        "right_if(ridge=2 * ridge)": "the factor 2 of the FLOPs (a multiply and an add) is missing.",
        "right_if(p=2) if p != 2 else right_if(p=1)": "that is right for elements of a different size. Here they have p bytes.",
        "right or math.ceil(p * d * d * ridge / (2 * d * (d - p * ridge) or -1))": "no batch reaches a ridge of D/p: None.",
        "right or 0": "no batch reaches the ridge here. Return None, which is not the same as 0.",
    },
    hints=(
        "As tokens grow, where does the intensity of a square layer go? Is the ridge always below that limit?",
        "Write FLOPs ≥ ridge × bytes with all three matrices in the bytes, and collect the tokens on one side. Ask what "
        "it means if their factor is zero or negative, and round so that the ridge is really reached.",
    ),
    checked="an A100 and an H100 at several widths, fp32, a layer too narrow for any batch, and a ridge of 1.",
)
def smallest_batch(ridge, d, p):
    # 2Bd²/(p(2Bd + d²)) ≥ ridge, solved for B.
    below = 2 * d * (d - p * ridge)
    return None if below <= 0 else max(1, math.ceil(p * d * d * ridge / below))


@exercise(
    "07.2",
    mistakes={
        "('A', ..., ...)": "with 8 tokens the chip does 8 FLOPs for each byte of weights. What is it waiting for?",
        "('C', ..., ...)": "the activation has few numbers beside the 67 million weights, all of which are read.",
        "('B', 1.0, ...)": "fewer bytes do shorten the time, because this layer is limited by reading its weights.",
        "('B', ..., 'B')": "with 4,096 tokens each weight is used so often that its bytes hardly matter. What is the limit then?",
        "('B', ..., 'C')": "with 4,096 tokens the product takes most of the time. What limits a product of this size?",
    },
    hints=(
        "Place the layer under the roof of section 1, with 8 tokens and with 4,096. On which side of the ridge is it?",
        "For each plan, ask which of FLOPs, bytes, peak and bandwidth it changes, and whether that one limits the layer.",
    ),
    checked="reading the weights limits the layer at 8 tokens, and B halves their bytes; at 4,096 the peak does, "
    "and A doubles it.",
    tolerance=0.03,
)
def what_to_buy():
    tokens, d, peak, bandwidth = 8, 8192, 989.4e12, 3.35e12
    flops, activations = 2 * tokens * d * d, 2 * 2 * tokens * d
    before, after = (max(flops / peak, (size * d * d + activations) / bandwidth) for size in (2, 1))
    return "B", before / after, "A"


_SOFTMAX = [(1e6, 2e6, 2e6), (1e6, 2e6, 2e6), (2e6, 2e6, 2e6)]
_MIXED = [(5e9, 1e6, 1e6), (1e6, 1e6, 1e6)]
#: It widens and narrows, so that no two of its reads and writes are alike.
_UNEVEN = [(5e5, 3e6, 9e6), (1e6, 9e6, 5e6), (5e5, 5e6, 8e6)]


@exercise(
    "07.3",
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
        "right_if(fused=True)": "that is the time of a fused kernel. Separate steps each read and write memory.",
        "max(sum(f for f, _, _ in steps) / peak, sum(r + w for _, r, w in steps) / bandwidth)": "separate kernels "
        "have a maximum each, and a fused one moves only the first input and the last output.",
        "max(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)": "you took the longest step, but all of them run.",
        "right_if(steps=[*steps[:-1], (*steps[-1][:2], 0)]) if fused else right": "you left out the last write. The result "
        "has to reach memory.",
    },
    hints=(
        "What goes to memory between two separate kernels, and what between two steps of one kernel?",
        "Separate kernels wait for one another, so each has its own longer side. One kernel has a single longer side, and only "
        "its ends touch memory.",
    ),
    checked="element-wise chains, a mixed one and an uneven one, fused and not, with slow and fast memory, and a single step.",
)
def chain_seconds(steps, peak, bandwidth, fused):
    """steps: (flops, bytes read, bytes written) in order; each reads what the one before it wrote."""
    if not fused:
        return sum(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)
    return max(sum(f for f, _, _ in steps) / peak, (steps[0][1] + steps[-1][2]) / bandwidth)


class Machine:
    """Works behind your back: launch() orders and returns, wait() returns when all is done, clock() tells the seconds.

    costs: seconds of each call's work, the last one for all further calls; busy: seconds of work ordered by others.
    """

    def __init__(self, *costs: float, busy: float = 0):
        self.costs, self.now, self.free = list(costs), 0.0, float(busy)

    def launch(self):
        self.now += 2**-10
        self.free = max(self.free, self.now) + self.costs[0]
        self.costs = self.costs[1:] or self.costs

    def wait(self):
        self.now = max(self.now, self.free)

    def clock(self) -> float:
        return self.now

    def __repr__(self) -> str:
        return "machine"


def _warm(machine, warmup: int):
    for _ in range(warmup):
        machine.launch()
    return machine


def _all_at_once(machine, warmup, repeats):
    _warm(machine, warmup).wait()
    start = machine.clock()
    _warm(machine, repeats).wait()
    return (machine.clock() - start) / repeats


@exercise(
    "07.4",
    cases={
        "calls that take 1 s": (Machine(1.0), 1, 5),
        "a first call of 9 s": (Machine(9.0, 1.0), 1, 1),
        "two slow first calls and no more than three repeats": (Machine(9.0, 6.0, 1.0, 1.25, 1.5), 2, 3),
        "an interrupted call": (Machine(1.0, 1.5, 20.0, 1.25, 1.0, 2.0), 1, 5),
        "a machine that is still busy for 30 s": (Machine(1.0, 1.5, 2.0, busy=30), 0, 1),
        "an even number of repeats": (Machine(1.0, 1.0, 2.0, 4.0, 8.0), 1, 4),
    },
    mistakes={
        "right_if(after=False)": "you timed how long it takes to launch the work. Wait before you stop the clock.",
        "right_if(before=False)": "your time includes other work or your warm-up. Wait before you start the clock.",
        "right_if(warmup=0, repeats=warmup + repeats)": "the warm-up calls are among the times. They do not count.",
        "right_if(middle=statistics.mean)": "this is the mean, which a single interrupted call can move.",
        "right_if(middle=statistics.median_low)": "of an even number of times, the median is the mean of the middle two. You "
        "took the smaller.",
        "right_if(middle=statistics.median_high)": "of an even number of times, the median is the mean of the middle two. You "
        "took the larger.",
        "right_if(middle=min)": "this is the fastest call; the task asks for the median.",
        _all_at_once: "you timed all the calls together and divided. That is a mean. Time each call by itself.",
    },
    hints=(
        "For every repeat you ask three things of the machine, and two of them twice. In which order?",
        "Make the warm-up calls and forget them. Then begin each repeat with an idle machine, and stop the clock only when it is "
        "idle again. Keep the times in a list.",
    ),
    checked="slow first calls, an interrupted call, a machine that is still busy, and even and odd numbers of repeats.",
)
def timed(machine, warmup, repeats, *, before=True, after=True, middle=statistics.median):
    _warm(machine, warmup)
    times = []
    for _ in range(repeats):
        if before:
            machine.wait()
        start = machine.clock()
        machine.launch()
        if after:
            machine.wait()
        times.append(machine.clock() - start)
    return middle(times)


class Timer:
    """Knows how long each product takes: seconds of the product (m × k) · (k × n), by (m, k, n)."""

    def __init__(self, seconds: dict[tuple[int, int, int], float]):
        self.seconds = seconds

    def __call__(self, m: int, k: int, n: int) -> float:
        return self.seconds[m, k, n]

    def __repr__(self) -> str:
        return "seconds_of"


#: The smallest product takes the least time, and the largest is slower than the middle one, as on a chip that gets hot.
_SQUARES = {(256, 256, 256): 1e-3, (1024, 1024, 1024): 20e-3, (2048, 2048, 2048): 200e-3}
_TIMER = Timer({**_SQUARES, (1, 4096, 4096): 8e-3, (4096, 32, 4096): 30e-3, (512, 2048, 1024): 18e-3})
_TWO = Timer({(512, 512, 512): 4e-3, (1024, 1024, 1024): 16e-3})


def _by_the_quickest(seconds_of, shape, tried):
    def speed(one):
        return math.prod(one) / seconds_of(*one)

    return speed(shape) / speed(min([shape, *tried], key=lambda one: seconds_of(*one)))


@exercise(
    "07.5",
    cases={
        "half as fast as the one that was tried": (_TWO, (512, 512, 512), [(1024, 1024, 1024)]),
        "one row times a matrix": (_TIMER, (1, 4096, 4096), [*_SQUARES]),
        "a narrow product": (_TIMER, (4096, 32, 4096), [*_SQUARES]),
        "a shape that is faster than all that were tried": (_TIMER, (512, 2048, 1024), [*_SQUARES]),
        "a shape that is among those tried": (_TIMER, (2048, 2048, 2048), [*_SQUARES]),
        "the best of those tried is not square": (_TIMER, (256, 256, 256), [(512, 2048, 1024), (4096, 32, 4096)]),
        "nothing else was tried": (_TIMER, (4096, 32, 4096), []),
    },
    mistakes={
        "right_if(best=min)": "you compared with the slowest product. The peak is the highest speed.",
        "right_if(best=statistics.mean)": "that is the average speed, and a peak is the highest.",
        "right_if(best=lambda speeds: speeds[-1])": "you took the last product that was tried for the best.",
        "right_if(among=slice(1, None)) if tried else right": "that is more than the whole peak: the product itself is among "
        "those that may have set it.",
        "min(seconds_of(*one) for one in [shape, *tried]) / seconds_of(*shape)": "you compared times. A small product takes "
        "little time and yet may be slow: compare speeds, FLOPs by seconds.",
        _by_the_quickest: "the product that takes the least time is a small one, and hardly the fastest. The peak is the highest "
        "speed.",
        "right_if(work=lambda m, k, n: m * n)": "each of the m × n results takes k multiplications and additions.",
        "right_if(work=lambda m, k, n: m**3)": "2·m³ are the FLOPs of square matrices only. It is 2·m·k·n.",
        "1 / right": "that is the peak over the speed. The share is the other way round.",
        "100 * right": "that is in percent. Return the share, such as 0.5.",
    },
    hints=(
        "What can you compare between two products of different shapes, and what not?",
        "Turn each time into FLOPs per second. Which of these numbers is the peak? Is the product in question among them?",
    ),
    checked="square, narrow and one-row products, a peak that the largest does not reach, and a product that sets it itself.",
)
def utilization(seconds_of, shape, tried, *, best=max, among=slice(None), work=lambda *one: math.prod(one)):
    # The 2 of 2·m·k·n is in every speed, so that no share depends on it.
    speeds = [work(*one) / seconds_of(*one) for one in (shape, *tried)]
    return speeds[0] / best(speeds[among])
