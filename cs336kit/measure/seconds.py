"""Time a function: warm up, synchronize, repeat until the spread is small, report median and quartiles."""

import gc
import inspect
import statistics
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cs336kit.measure.device import device as _device
from cs336kit.measure.device import runnable
from cs336kit.predict.checks import positive_int, positive_number

#: A clock cannot resolve shorter batches of calls; calls are grouped until a batch takes this long.
SHORTEST_BATCH_SECONDS = 1e-4
#: The same on a GPU, where the host may need some of a batch's time to start its first kernels.
SHORTEST_GPU_BATCH_SECONDS = 1e-3
#: Repeats continue until their quartiles are this close together, as a fraction of the median.
DEFAULT_SPREAD = 0.05
#: How long a GPU is kept busy before it is timed: an idle one raises its clocks only after a while.
GPU_WARMUP_SECONDS = 0.1
#: A call that takes longer than this is certainly not empty.
LONGEST_EMPTY_CALL_SECONDS = 1e-5


@dataclass(frozen=True)
class Timing:
    """Seconds per call: `median`, `first_quartile`, `third_quartile`, the raw `repeats` and `calls` in each repeat.

    `spread` is the distance of the quartiles over the median; `settled` says whether it became as small as requested.
    """

    repeats: tuple[float, ...]
    calls: int
    device: str
    settled: bool

    @property
    def median(self) -> float:
        return statistics.median(self.repeats)

    @property
    def first_quartile(self) -> float:
        return statistics.quantiles(self.repeats, n=4, method="inclusive")[0]

    @property
    def third_quartile(self) -> float:
        return statistics.quantiles(self.repeats, n=4, method="inclusive")[2]

    @property
    def spread(self) -> float:
        return (self.third_quartile - self.first_quartile) / self.median

    def agrees_with(self, other: "Timing", *, within: float = DEFAULT_SPREAD) -> bool:
        """Whether the two cannot be told apart: their medians differ by at most `within` (a fraction of the larger one; by
        default the spread at which `measure.seconds` stops), or the middle halves of their repeats overlap."""
        apart = abs(self.median - other.median) > positive_number("within", within) * max(self.median, other.median)
        overlap = self.first_quartile <= other.third_quartile and other.first_quartile <= self.third_quartile
        return overlap or not apart

    def __float__(self) -> float:
        return self.median

    def __repr__(self) -> str:
        scales = [(1000**power, unit) for power, unit in enumerate(("s", "ms", "µs", "ns"))]
        scale, unit = next((pair for pair in scales if self.median * pair[0] >= 1), scales[-1])
        low, middle, high = (x * scale for x in (self.first_quartile, self.median, self.third_quartile))
        note = "" if self.settled else ", spread still large"
        quartiles = f"quartiles {low:.4g} to {high:.4g}, {len(self.repeats)} repeats on {self.device}{note}"
        return f"{middle:.4g} {unit} ({quartiles})"


def seconds(
    function: Callable[[], object],
    *,
    device: torch.device | str | None = None,
    spread: float = DEFAULT_SPREAD,
    warmup: int = 3,
    at_least: int = 5,
    at_most: int = 50,
    budget_seconds: float = 5.0,
) -> Timing:
    """Time `function()`: seconds per call, as the median of repeats.

    `warmup` calls are discarded: they pay for compilation, caches and clocks. Then repeats continue until all of them lie
    within `spread` of the median, or their quartiles do after each of `at_least` consecutive repeats, since those of few
    and noisy repeats may do so once by luck. It ends at `at_most` repeats or after `budget_seconds`; see `.settled`.
    A GPU runs asynchronously, so there each repeat is timed by two CUDA events, after a call that is not timed, and the
    last event is waited for; a CPU is timed by `timeit` with `time.perf_counter`. Very short functions are called several
    times per repeat, and the shortest some thousand times more, to tell them from an empty function.
    Errors: TypeError if `function` cannot be called, RuntimeError if there is nothing to time.
    """
    runnable("measure.seconds", function)
    at_least, at_most = positive_int("at_least", at_least), positive_int("at_most", at_most)
    warmup, budget = positive_int("warmup", warmup), positive_number("budget_seconds", budget_seconds)
    if not 2 <= at_least <= at_most:
        raise ValueError(f"at_least must be 2 or more and no larger than at_most, got {at_least} and {at_most}.")
    spread = positive_number("spread", spread)
    where = _device(device)
    on_gpu = where.type == "cuda"
    once = _cuda_repeat if on_gpu else _cpu_repeat
    shortest = SHORTEST_GPU_BATCH_SECONDS if on_gpu else SHORTEST_BATCH_SECONDS
    for _ in range(warmup):
        result = function()
    if inspect.isgenerator(result) or inspect.iscoroutine(result):
        kind = type(result).__name__
        raise RuntimeError(
            f"the function returned a {kind}, so its body has not run and there is nothing to time: run it."
        )
    start = time.perf_counter()
    while on_gpu and time.perf_counter() - start < GPU_WARMUP_SECONDS:
        once(function, 1, where)
    calls = 1
    while once(function, calls, where) < shortest:
        calls *= 4
    repeats: list[float] = []
    start, steady = time.perf_counter(), 0
    while len(repeats) < at_most and steady < at_least:
        repeats.append(once(function, calls, where) / calls)
        if len(repeats) >= at_least:
            so_far = Timing(tuple(repeats), calls, where.type, True)
            steady = steady + 1 if so_far.spread <= spread else 0
            together = max(repeats) - min(repeats) <= spread * so_far.median
            if together or time.perf_counter() - start > budget:
                break
    # Check the fastest repeat: an interrupted one looks like work.
    if min(repeats) < LONGEST_EMPTY_CALL_SECONDS:
        _refuse_nothing(function, where)
    return Timing(tuple(repeats), calls, where.type, so_far.spread <= spread)


def _cpu_repeat(function: Callable[[], object], calls: int, where: torch.device) -> float:
    # timeit disables garbage collection, which in one repeat would look like a slow function.
    return timeit.timeit(function, timer=time.perf_counter, number=calls)


def _cuda_repeat(function: Callable[[], object], calls: int, where: torch.device) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(where)
    torch.cuda.synchronize(where)
    collects = gc.isenabled()
    gc.disable()
    try:
        # On an idle GPU the first event would pass before the first kernel is launched, and the launch would be timed, too.
        function()
        first.record(stream)
        # Not timeit: it compiles its loop at every call, which takes longer than the call before, and the GPU would wait for it.
        for _ in range(calls):
            function()
        last.record(stream)
    finally:
        if collects:
            gc.enable()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _refuse_nothing(function: Callable[[], object], where: torch.device) -> None:
    """Raise RuntimeError if a call takes no longer than calling an empty function, by the fastest of short bursts."""
    bursts = [(_cpu_repeat(function, 1000, where), _cpu_repeat(_nothing, 1000, where)) for _ in range(7)]
    mine, empty = (min(times) for times in zip(*bursts, strict=True))
    if mine < 2 * empty:
        raise RuntimeError(
            f"one call takes {mine / 1000:.0e} s, as long as calling an empty function: there is nothing to time. "
            "Let the function do the work itself: lambda: x @ w."
        )


def _nothing() -> None:
    return None
