"""Collectives that run, and several ranks in one process."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from cs336kit import _torch

#: Operator of torch.distributed → its collective, the number of the argument that gives the bytes of the whole, and
#: whether that is only one rank's share, to be multiplied by the ranks.
COLLECTIVES = {
    "allreduce_": ("all-reduce", 0, False), "allreduce_coalesced_": ("all-reduce", 0, False),
    "all_reduce": ("all-reduce", 0, False), "all_reduce_": ("all-reduce", 0, False),
    "_allgather_base_": ("all-gather", 0, False), "allgather_": ("all-gather", 0, False),
    "allgather_into_tensor_coalesced_": ("all-gather", 0, False), "all_gather_into_tensor": ("all-gather", 0, True),
    "all_gather_into_tensor_coalesced": ("all-gather", 0, True),
    "_reduce_scatter_base_": ("reduce-scatter", 1, False), "reduce_scatter_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor_coalesced_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor": ("reduce-scatter", 0, False),
    "reduce_scatter_tensor_coalesced": ("reduce-scatter", 0, False),
    "alltoall_base_": ("all-to-all", 1, False), "alltoall_": ("all-to-all", 1, False),
    "all_to_all_single": ("all-to-all", 0, False),
    "broadcast_": ("broadcast", 0, False), "broadcast": ("broadcast", 0, False), "reduce_": ("reduce", 0, False),
    "gather_": ("gather", 1, True), "scatter_": ("scatter", 0, True), "send": ("send", 0, False),
}  # fmt: skip


class Collectives(_torch.TorchDispatchMode):
    """Calls `record(kind, bytes of the whole, ranks)` for every collective that runs."""

    def __init__(self, record: Callable[[str, int, int], None]):
        super().__init__()
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _torch.has_ranks(types):
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        if "c10d" in func.namespace and name in COLLECTIVES:
            kind, which, share = COLLECTIVES[name]
            count = group_size(args)
            whole = sum(t.numel() * t.element_size() for t in map(_torch.local, _torch.tensors(args[which])))
            self.record(kind, whole * (count if share else 1), count)
            return self.run(func, name, args, kwargs or {})
        return func(*args, **kwargs or {})

    def run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def group_size(args: Iterable[Any]) -> int:
    """The size of the process group among the arguments of a collective."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    for arg in args:
        if isinstance(arg, str) and arg not in ("sum", "avg", "product", "min", "max"):
            return _resolve_process_group(arg).size()
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg).size()
        if isinstance(arg, dist.ProcessGroup):
            return arg.size()
    return dist.get_world_size()


def rank_values(tensor: Tensor, count: int) -> list[Tensor]:
    """The value of each of `count` ranks in this process; all share a plain tensor."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    tensor = getattr(tensor, "elem", tensor)
    several = getattr(tensor, "_local_tensors", None)
    return [tensor] * count if several is None else [several[rank] for rank in range(count)]


class LocalCollectives(Collectives):
    """Collectives for ranks in this process, including those that torch has only between processes."""

    def run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in _torch.tensors(args):
            if not hasattr(tensor, "_local_tensors"):
                raise ValueError(
                    f"a plain tensor of shape {tuple(tensor.shape)} belongs to no rank: make it inside "
                    "`with measure.local_ranks(n) as ranks`, or with ranks.each(function)."
                )
        if name in ("gather_", "reduce_"):
            import torch.distributed as dist

            if (count := group_size(args)) != dist.get_world_size():
                raise ValueError(
                    f"ranks in one process can {name.strip('_')} only over all of them, and this group has {count}."
                )
            with torch.no_grad():
                return self._gather(*args) if name == "gather_" else self._reduce(*args)
        if name in ("send", "recv_", "recv_any_source_"):
            raise ValueError(
                f"{name.strip('_')} is called by a single rank, but these ranks run every line together: use "
                "measure.run_ranks, whose ranks are processes, or a collective such as broadcast."
            )
        return func(*args, **kwargs)

    @staticmethod
    def _gather(outputs: Any, inputs: Any, group: Any, root: int, *rest: Any) -> Any:
        if not outputs or not outputs[0]:
            raise ValueError("ranks in one process gather to rank 0: write dst=0, and give the list of tensors.")
        for rank, output in enumerate(outputs[0]):
            output._local_tensors[root].copy_(inputs[0]._local_tensors[rank])
        return _done()

    @staticmethod
    def _reduce(reduced: Any, group: Any, operation: Any, root: int, *rest: Any) -> Any:
        everywhere = reduced[0].clone()
        torch.ops.c10d.allreduce_.default([everywhere], group, operation, None)
        reduced[0]._local_tensors[root].copy_(everywhere._local_tensors[root])
        return _done()


def _done() -> Any:
    from torch._C._distributed_c10d import FakeWork, Work

    return Work.boxed(FakeWork())


def start_local_ranks(count: int, record: Callable[[str, int, int], None]) -> tuple[Any, LocalCollectives]:
    """Start `count` ranks inside this process: (the mode that runs every line for each, the mode that watches collectives)."""
    from torch.distributed._local_tensor import LocalTensorMode

    start_fake_ranks(count, 0)
    return LocalTensorMode(count), LocalCollectives(record)


def start_fake_ranks(count: int, rank: int) -> None:
    """Start a fake process group, which sends nothing and returns at once."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
