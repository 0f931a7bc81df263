"""What a GPU's limit of power makes of the same product: after a rest and after seconds of work, on random numbers and zeros."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu_rows import Run, row
from cs336kit import measure, predict

#: How long the GPU rests before, and works before, a product is timed.
REST_SECONDS, WORK_SECONDS = 2.0, 2.0


def power(run: Run) -> Iterator[dict]:
    """Seconds of one bf16 product beside its time at the peak, with the clock and the draw of power while it runs."""
    n = 64 if run.tiny else 8192
    peak = run.peak("bf16")
    predicted = peak and predict.matmul_flops(n, n, n) / peak
    for data, make in (("random", torch.randn), ("zeros", torch.zeros)):
        a, b = (make(n, n, device=run.device, dtype=torch.bfloat16) for _ in range(2))
        setting = {"precision": "bf16", "data": data, "rows": n, "inner": n, "columns": n}

        def product(a=a, b=b) -> None:
            a @ b

        if run.device.type != "cuda":
            yield row("product", measure.seconds(product, device=run.device, **run.timing), "s", **setting)
            continue
        time.sleep(REST_SECONDS)
        rested = _each(product, 10)
        yield row(
            "product after a rest", statistics.median(rested), "s", predicted=predicted, repeats=rested, **setting
        )
        end = time.perf_counter() + WORK_SECONDS
        while time.perf_counter() < end:
            _each(product, 50)
        for _ in range(200):  # what is asked for below is asked while these run
            product()
        try:
            hertz, watts = torch.cuda.clock_rate() * 1e6, torch.cuda.power_draw() / 1e3
        except (ModuleNotFoundError, RuntimeError) as error:
            run.skip("clock and power", error)
        else:
            yield row("clock", hertz, "Hz", **setting)
            yield row("power", watts, "W", predicted=run.fact("power"), **setting)
        worked = _each(product, 50)
        yield row("product after work", statistics.median(worked), "s", predicted=predicted, repeats=worked, **setting)
    if run.device.type != "cuda":
        run.skip("rest and work", "this run has no CUDA device")


def _each(function: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of some calls in a row, of which the first two do not count."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 3)]
    for event in events:
        event.record()
        function()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) / 1e3 for first, last in zip(events[2:-1], events[3:], strict=True)]
