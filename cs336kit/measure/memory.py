"""Bytes that are alive while a function runs: the peak, and the whole course of it."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336kit.measure.calls import runnable
from cs336kit.measure.device import device as _device
from cs336kit.predict._common.checks import positive_int


@dataclass(frozen=True)
class MemoryPoint:
    """After `operator` returned, `live_bytes` of the tensors made since the start were alive."""

    operator: str
    live_bytes: int


def memory_timeline(function: Callable[[], object], *, round_to: int = 1) -> list[MemoryPoint]:
    """Run `function()` and list the live bytes after every operator and at the end, on any device, also meta and fake.

    Counted are the storages that the function makes, each once however many views it has, from the operator that
    makes it until its last reference goes. `round_to=512` rounds each storage up as the CUDA allocator does.
    Left out: what was there before, and scratch memory inside a kernel. Errors: TypeError for what cannot be called.
    """
    runnable("measure.memory_timeline", function)
    tracker = _LiveStorages(positive_int("round_to", round_to))
    with tracker:
        function()
    tracker.points.append(MemoryPoint("end", tracker.live))
    return tracker.points


def peak_bytes(function: Callable[[], object], *, device: torch.device | str | None = None, round_to: int = 1) -> int:
    """The most bytes that `function()` has alive at once, beyond those that were there before it.

    On a CUDA device this is `max_memory_allocated` less what was allocated before: every tensor rounded up to 512 bytes,
    kernels' scratch memory included. Elsewhere it is the peak of `memory_timeline`: exact bytes of storages.
    """
    runnable("measure.peak_bytes", function)
    where = _device(device)
    if where.type != "cuda":
        return max((point.live_bytes for point in memory_timeline(function, round_to=round_to)), default=0)
    torch.cuda.synchronize(where)
    torch.cuda.reset_peak_memory_stats(where)
    before = torch.cuda.memory_allocated(where)
    function()
    torch.cuda.synchronize(where)
    return torch.cuda.max_memory_allocated(where) - before


class _LiveStorages(TorchDispatchMode):
    """Adds a storage's bytes when an operator first returns it, and takes them off when it is freed."""

    def __init__(self, round_to: int):
        super().__init__()
        self.round_to, self.live, self.points = round_to, 0, []
        # By the storage's address in C++, which is unique while it lives: its bytes, or None if it was there before.
        self._sizes: dict[int, int | None] = {}
        self._references: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # torch.tensor([1.0]) makes its storage without an operator and announces it by lift_fresh.
        if operator is not torch.ops.aten.lift_fresh.default:
            for tensor in _tensors((args, kwargs)):
                self._see(tensor, before=True)
        result = operator(*args, **kwargs)
        for tensor in _tensors(result):
            self._see(tensor, before=False)
        self.points.append(MemoryPoint(str(operator), self.live))
        return result

    def _see(self, tensor, *, before: bool):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._references[key] = weakref.ref(storage, lambda _: self._freed(key))
            self._sizes[key] = None if before else 0
        if self._sizes[key] is not None:
            size = -(-storage.nbytes() // self.round_to) * self.round_to
            self.live += size - self._sizes[key]  # also when resize_ changed it
            self._sizes[key] = size

    def _freed(self, key: int):
        self.live -= self._sizes.pop(key) or 0
        del self._references[key]


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
