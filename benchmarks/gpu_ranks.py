"""Collectives among real ranks, one process for each GPU: what NCCL reaches, beside a ring at the speed of the links."""

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu_rows import Run, row
from cs336kit.predict._collectives import ring_bytes

KINDS = ("all-reduce", "all-gather", "reduce-scatter")


def ranks(run: Run) -> Iterator[dict]:
    """Seconds of collectives of one size among all GPUs; skipped where there are fewer than two."""
    count = torch.cuda.device_count() if run.device.type == "cuda" else 0
    if count < 2:
        run.skip("ranks", f"this run has {count} CUDA devices, and ranks need two")
        return
    link = run.fact("link")
    for kind, size, repeats in collectives(count, backend="nccl", sizes=(2**20, 2**28)):
        seconds = sorted(repeats)[len(repeats) // 2]
        predicted = link and ring_bytes(kind, size, count) / link
        yield row(kind, seconds, "s", predicted=predicted, repeats=repeats, ranks=count, size_bytes=size)


def collectives(count: int, *, backend: str, sizes: tuple[int, ...]) -> list[tuple[str, int, list[float]]]:
    """(kind, bytes of the whole, seconds of each repeat) as rank 0 saw them; every rank is a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    torch.multiprocessing.spawn(_rank, (count, backend, sizes, port, results), nprocs=count)
    return results.get()


def _rank(rank: int, count: int, backend: str, sizes: tuple[int, ...], port: int, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    where = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group(backend, rank=rank, world_size=count)
    found = [(kind, size, _timed(kind, size // 4, count, where)) for size in sizes for kind in KINDS]
    if rank == 0:
        results.put(found)
    dist.barrier()
    dist.destroy_process_group()


def _timed(kind: str, elements: int, count: int, where: torch.device, repeats: int = 10) -> list[float]:
    """Seconds of some repeats after three that do not count; `elements` of the whole tensor."""
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
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return time.perf_counter() - start

    return [once() for _ in range(3 + repeats)][3:]
