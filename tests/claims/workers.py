"""Workers that really send: threads of this process that torch's gloo joins over the loopback."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Worker:
    """One of several workers, with the collectives of its group; each of them leaves its argument as it is."""

    def __init__(self, rank: int, count: int, store: dist.Store):
        self.rank, self.count = rank, count
        # By the loopback's address: not every machine can look up its own name, by which gloo would go.
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        # A worker that fails leaves the others waiting; its own error is the one that is shown.
        options._timeout = timedelta(seconds=20)
        self.group = dist.ProcessGroupGloo(store, rank, count, options)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """What worker 0 has."""
        tensor = tensor.clone()
        self.group.broadcast(tensor, 0).wait()
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """On worker 0 what each has; elsewhere nothing."""
        received = [torch.empty_like(tensor) for _ in range(self.count)] if self.rank == 0 else []
        self.group.gather([received] if received else [], [tensor], dist.GatherOptions()).wait()
        return received

    def reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor | None:
        """On worker 0 the elements of all combined; elsewhere None, since gloo leaves partial results there."""
        tensor = tensor.clone()
        self.group.reduce(tensor, 0, op).wait()
        return tensor if self.rank == 0 else None

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        received = [torch.empty_like(tensor) for _ in range(self.count)]
        self.group.allgather([received], [tensor.contiguous()]).wait()
        return received

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        tensor = tensor.clone()
        self.group.allreduce(tensor, op).wait()
        return tensor

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """This worker's part of the sum, cut along the first axis."""
        part = torch.empty_like(tensor.chunk(self.count)[self.rank])
        self.group.reduce_scatter(part, list(tensor.contiguous().chunk(self.count)), dist.ReduceOp.SUM).wait()
        return part


def together(count: int, function: Callable[[Worker], Any]) -> list[Any]:
    """What `function(worker)` returns on each of `count` workers that run at once."""
    store = dist.HashStore()
    # Kept until all are done: one that has sent and is gone would cut off whoever still receives.
    workers: list[Worker] = []

    def work(rank: int) -> Any:
        workers.append(worker := Worker(rank, count, store))
        return function(worker)

    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(work, rank) for rank in range(count)]
    failed = [error for run in runs if (error := run.exception())]
    if failed:
        raise next((error for error in failed if not isinstance(error, dist.DistError)), failed[0])
    return [run.result() for run in runs]
