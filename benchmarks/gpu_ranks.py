"""Collectives among real ranks, one process for each GPU: what NCCL reaches, beside a ring at the speed of the links."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.gpu_rows import Run, row
from cs336kit import measure
from cs336kit.predict.engine.collectives import ring_bytes

KINDS = ("all-reduce", "all-gather", "reduce-scatter")


def ranks(run: Run) -> Iterator[dict]:
    """Seconds of collectives of one size among all GPUs; skipped where there are fewer than two."""
    count = torch.cuda.device_count() if run.device.type == "cuda" else 0
    if count < 2:
        run.skip("ranks", f"this run has {count} CUDA devices, and ranks need two")
        return
    link = run.fact("link")
    for kind, size, repeats in measure.run_ranks(collectives, (2**20, 2**28), ranks=count, device="cuda")[0]:
        seconds = sorted(repeats)[len(repeats) // 2]
        predicted = link and ring_bytes(kind, size, count) / link
        yield row(kind, seconds, "s", predicted=predicted, repeats=repeats, ranks=count, size_bytes=size)


def collectives(sizes: tuple[int, ...]) -> list[tuple[str, int, list[float]]]:
    """(kind, bytes of the whole, seconds of each repeat) as this rank sees them."""
    return [(kind, size, _timed(kind, size // 4)) for size in sizes for kind in KINDS]


def _timed(kind: str, elements: int, repeats: int = 10) -> list[float]:
    """Seconds of some repeats after three that do not count; `elements` of the whole tensor."""
    count, where = dist.get_world_size(), "cuda" if dist.get_backend() == "nccl" else "cpu"
    part = torch.ones(elements // count, device=where)
    whole = torch.ones(part.numel() * count, device=where)
    run = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }[kind]

    def once() -> float:
        dist.barrier()
        start = time.perf_counter()
        run()
        if where == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return [once() for _ in range(3 + repeats)][3:]
