"""Claims about collectives: what each worker has afterwards, and what it sends."""

from collections import Counter

import numpy as np
import torch
import torch.distributed as dist
from claims.settled import figures, settles
from claims.workers import together

N, M = 4, 8


def data(rank):
    """What a worker holds at first: whole numbers, whose sums are exact in any order."""
    return torch.randint(-9, 9, (M,), generator=torch.Generator().manual_seed(rank)).float()


EVERY = [data(rank) for rank in range(N)]
TOTAL = torch.stack(EVERY).sum(0)
#: How the reduce operations combine the numbers of all workers.
COMBINED = {
    dist.ReduceOp.SUM: torch.sum, dist.ReduceOp.MAX: torch.amax, dist.ReduceOp.MIN: torch.amin,
    dist.ReduceOp.PRODUCT: torch.prod,
}  # fmt: skip


@settles("coll-broadcast")
def test_broadcast():
    return [data(0).tolist()] * N, [got.tolist() for got in together(N, lambda w: w.broadcast(data(w.rank)))]


@settles("coll-gather")
def test_gather():
    chief, *_ = together(N, lambda w: w.gather(data(w.rank)))
    return [each.tolist() for each in EVERY], [got.tolist() for got in chief]


@settles("coll-reduce")
def test_reduce():
    chief, *_ = together(N, lambda w: [w.reduce(data(w.rank), op) for op in COMBINED])
    said = [combine(torch.stack(EVERY), 0).tolist() for combine in COMBINED.values()]
    return said, [got.tolist() for got in chief]


@settles("coll-reduce-concat")
def test_reduce_concat():
    # How many numbers there are at the end: those of a concatenation, and of each operation that reduces.
    chief, *_ = together(N, lambda w: [w.reduce(data(w.rank), op) for op in COMBINED])
    return [torch.cat(EVERY).numel()] * len(COMBINED), [got.numel() for got in chief]


@settles("coll-allgather")
def test_allgather():
    def both(worker):
        gathered = worker.gather(data(worker.rank)) or [torch.empty(M)] * N
        return worker.broadcast(torch.stack(gathered)).tolist(), torch.stack(
            worker.all_gather(data(worker.rank))
        ).tolist()

    gather_broadcast, all_gather = zip(*together(N, both), strict=True)
    return gather_broadcast, all_gather


@settles("coll-allreduce")
def test_allreduce():
    def all_ways(worker):
        mine = data(worker.rank)
        reduced = worker.reduce(mine)
        in_two = worker.broadcast(mine if reduced is None else reduced)
        in_parts = torch.cat(worker.all_gather(worker.reduce_scatter(mine)))
        return (in_two.tolist(), in_parts.tolist()), worker.all_reduce(mine).tolist()

    composed, at_once = zip(*together(N, all_ways), strict=True)
    return composed, tuple((got, got) for got in at_once)


@settles("coll-reducescatter")
def test_reducescatter():
    parts = together(N, lambda w: w.reduce_scatter(data(w.rank)).tolist())
    return [part.tolist() for part in TOTAL.chunk(N)], parts


def busiest(workers, all_reduce):
    """Numbers that the busiest worker sends in an all-reduce, which has to be right everywhere."""
    held = [np.arange(240) + rank for rank in range(workers)]
    expected, sent = sum(held), Counter()

    def send(rank, numbers):
        sent[rank] += len(numbers)
        return numbers.copy()

    all_reduce(held, send)
    assert all((mine == expected).all() for mine in held)
    return max(sent.values())


def by_ring(held, send):
    """Each part goes around once and grows into the sum, and once more and stays."""
    n = len(held)
    parts = [np.split(mine, n) for mine in held]
    for step in range(2 * (n - 1)):
        moving = [(rank, (rank - step) % n) for rank in range(n)]
        received = [((rank + 1) % n, part, send(rank, parts[rank][part])) for rank, part in moving]
        for rank, part, numbers in received:
            parts[rank][part][:] = numbers + (parts[rank][part] if step < n - 1 else 0)


def by_chief(held, send):
    for rank in range(1, len(held)):
        held[0] += send(rank, held[rank])
    for rank in range(1, len(held)):
        held[rank][:] = send(0, held[0])


@settles("coll-ring-cost")
def test_ring_cost():
    # How many times as much the busiest worker sends for twice as many workers: (N - 1)/N of it for a ring, and N - 1
    # times the tensor for the chief, both to one digit.
    growth = {way.__name__: busiest(16, way) / busiest(8, way) for way in (by_ring, by_chief)}
    return {"by_ring": 1.0, "by_chief": 2.0}, {name: figures(value, 1) for name, value in growth.items()}
