"""Copies between host and device, and their overlap with computation."""

from dataclasses import dataclass
from typing import Any

import torch

from cs336kit.measure.device import device as _device
from cs336kit.measure.seconds import Timing, seconds
from cs336kit.predict.checks import boolean, positive_int

DIRECTIONS = ("host to device", "device to host", "device to device", "host to host")


@dataclass(frozen=True)
class Transfer:
    """One kind of copy: `size_bytes` moved in `timing`; `bytes_per_second` counts them once, even if a chip both reads and
    writes them."""

    direction: str
    pinned: bool
    size_bytes: int
    timing: Timing

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.timing.median


def transfer(size_bytes: int, *, direction: str = "host to device", pinned: bool = False, **timing: Any) -> Transfer:
    """Time a copy of `size_bytes` in one direction, from pinned or pageable host memory.

    "host to host" runs anywhere; the others need a CUDA device. Further arguments go to `measure.seconds`.
    Errors: ValueError for an unknown direction, RuntimeError without a CUDA device.
    """
    size = positive_int("size_bytes", size_bytes)
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(map(repr, DIRECTIONS))}, got {direction!r}.")
    if not boolean("pinned", pinned) and direction == "host to host":
        source, target = (torch.ones(size, dtype=torch.uint8, device="cpu") for _ in range(2))
        return Transfer(direction, pinned, size, seconds(lambda: target.copy_(source), device="cpu", **timing))
    where = _device("cuda")
    source_is_host, target_is_host = direction.startswith("host"), direction.endswith("host")
    source = torch.ones(size, dtype=torch.uint8, device="cpu" if source_is_host else where)
    target = torch.ones(size, dtype=torch.uint8, device="cpu" if target_is_host else where)
    if pinned:
        source = source.pin_memory() if source_is_host else source
        target = target.pin_memory() if target_is_host else target
    return Transfer(
        direction, pinned, size, seconds(lambda: target.copy_(source, non_blocking=pinned), device=where, **timing)
    )


def overlap_timeline(
    *, batches: int = 6, size_bytes: int = 2**28, products: int = 8, width: int = 4096, pinned: bool = True
) -> list[tuple[str, int, float, float]]:
    """Copy batches to the GPU on one stream while another multiplies: spans (lane, batch, start, end) in seconds.

    A lane is "copy" or "compute". `pinned=False` copies from pageable memory, which makes the host
    wait for each copy. Errors: RuntimeError without a CUDA device.
    """
    boolean("pinned", pinned)
    where = _device("cuda")
    size, count = positive_int("size_bytes", size_bytes), positive_int("batches", batches)
    host = [torch.ones(size, dtype=torch.uint8, device="cpu") for _ in range(count)]
    if pinned:
        host = [batch.pin_memory() for batch in host]
    weight = torch.randn(width, width, device=where, dtype=torch.bfloat16)
    copying, computing = torch.cuda.Stream(where), torch.cuda.Stream(where)
    _overlap_once(host, weight, products, copying, computing)  # warm up
    return _overlap_once(host, weight, products, copying, computing)


def _overlap_once(
    host: list[torch.Tensor],
    weight: torch.Tensor,
    products: int,
    copying: torch.cuda.Stream,
    computing: torch.cuda.Stream,
) -> list[tuple[str, int, float, float]]:
    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    torch.cuda.synchronize()
    marks = []
    for batch in host:
        with torch.cuda.stream(copying):
            start = mark()
            on_device = batch.to(weight.device, non_blocking=True)
            copied = mark()
        computing.wait_event(copied)
        on_device.record_stream(computing)
        with torch.cuda.stream(computing):
            begun = mark()
            for _ in range(products):
                weight @ weight
            marks.append((start, copied, begun, mark()))
    torch.cuda.synchronize()
    origin, spans = marks[0][0], []
    for i, events in enumerate(marks):
        start, copied, begun, done = (origin.elapsed_time(event) / 1e3 for event in events)
        spans += [("copy", i, start, copied), ("compute", i, begun, done)]
    return spans
