"""Exercise 05.6: a chain of steps, fused or not."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def chain_seconds(steps, peak, bandwidth, fused):
    """steps: (flops, bytes read, bytes written) in order; each reads what the one before it wrote."""
    if not fused:
        return sum(max(f / peak, (r + w) / bandwidth) for f, r, w in steps)
    return max(sum(f for f, _, _ in steps) / peak, (steps[0][1] + steps[-1][2]) / bandwidth)


def _chain(steps, peak, bandwidth, fused, *, bytes_moved):
    """The right answer, but for the bytes of the fused kernel."""
    if not fused:
        return chain_seconds(steps, peak, bandwidth, False)
    return max(sum(f for f, _, _ in steps) / peak, bytes_moved(steps) / bandwidth)


_SOFTMAX = [(1e6, 2e6, 2e6), (1e6, 2e6, 2e6), (2e6, 2e6, 2e6)]
_MIXED = [(5e9, 1e6, 1e6), (1e6, 1e6, 1e6)]
#: It widens and narrows, so that no two of its reads and writes are alike.
_UNEVEN = [(5e5, 3e6, 9e6), (1e6, 9e6, 5e6), (5e5, 5e6, 8e6)]

CHAIN = Exercise(
    id="05.6",
    reference=chain_seconds,
    cases=lambda: [
        Case((_SOFTMAX, 1e12, 1e12, False), label="three element-wise steps, one by one"),
        Case((_SOFTMAX, 1e12, 1e12, True), label="three element-wise steps, fused"),
        Case((_MIXED, 1e12, 1e12, False), label="a heavy step and a light one, one by one"),
        Case((_MIXED, 1e12, 1e12, True), label="a heavy step and a light one, fused"),
        Case((_UNEVEN, 1e12, 1e12, True), label="steps of uneven bytes, fused"),
        Case((_UNEVEN, 1e12, 1e12, False), label="steps of uneven bytes, one by one"),
        Case((_UNEVEN, 1e12, 1e13, True), label="steps of uneven bytes with fast memory, fused"),
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
        Mistake(
            lambda *given: _chain(*given, bytes_moved=lambda steps: steps[0][1]),
            "The last write is missing: for {case} you returned {given}. The result has to reach memory.",
        ),
        Mistake(
            lambda *given: _chain(*given, bytes_moved=lambda steps: steps[-1][2]),
            "The first read is missing: for {case} you returned {given}. The input lies in memory.",
        ),
        Mistake(
            lambda *given: _chain(*given, bytes_moved=lambda steps: steps[0][1] + steps[0][2]),
            "You moved the bytes of the first step: for {case} you returned {given}. A fused kernel reads what the first "
            "step reads and writes what the last one writes.",
        ),
        Mistake(
            lambda *given: _chain(*given, bytes_moved=lambda steps: steps[-1][1] + steps[-1][2]),
            "You moved the bytes of the last step: for {case} you returned {given}. A fused kernel reads what the first "
            "step reads and writes what the last one writes.",
        ),
        Mistake(
            lambda *given: _chain(*given, bytes_moved=lambda steps: 0),
            "You counted the FLOPs alone: for {case} you returned {given}. Fused or not, first input and last output cross.",
        ),
        Mistake(
            lambda steps, peak, bandwidth, fused: (
                (steps[0][1] + steps[-1][2]) / bandwidth if fused else sum(r + w for _, r, w in steps) / bandwidth
            ),
            "You counted the bytes alone: for {case} you returned {given}. A step with enough FLOPs takes longer than its "
            "bytes.",
        ),
    ),
    hints=(
        "What crosses to memory between two separate kernels, and what between two steps of one kernel?",
        "One by one: add up max(compute, memory) of each step. Fused: all FLOPs, but only the first read and the last write.",
        "fused: max(sum(f …) / peak, (steps[0][___] + steps[-1][___]) / bandwidth); else: sum(max(…, …) for …)",
    ),
    checked="element-wise chains, a mixed one and an uneven one, fused and not, with slow and fast memory, and a single step.",
)
