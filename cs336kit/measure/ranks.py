"""Several ranks inside this process, where every line runs for each of them, and the collectives that ranks run."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cs336kit._torch.collectives import Collectives, rank_values, start_fake_ranks, start_local_ranks
from cs336kit.predict import ring_bytes
from cs336kit.predict.checks import positive_int
from cs336kit.predict.grid import as_html, as_text


@dataclass(frozen=True)
class Collective:
    """One collective that ran."""

    kind: str
    #: bytes of the whole: what each rank holds after an all-gather, before a reduce-scatter, before and after an all-reduce
    size: int
    #: of the group that took part
    ranks: int

    @property
    def bytes(self) -> int:
        """Bytes that each rank sends if the collective is a ring (for the busiest rank, if they differ)."""
        return ring_bytes(self.kind, self.size, self.ranks)


class Sent(list[Collective]):
    """The collectives that ran, in order."""

    @property
    def total(self) -> int:
        """Bytes that each rank sends in rings."""
        return sum(each.bytes for each in self)

    _HEAD = "collective", "ranks", "bytes of the whole", "bytes each rank sends"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [(each.kind, str(each.ranks), f"{each.size:,}", f"{each.bytes:,}") for each in self]
        return [*rows, ("total", "", "", f"{self.total:,}")]

    def __repr__(self) -> str:
        return as_text([self._HEAD, *self._rows()], "<>>>", gap=2)

    def _repr_html_(self) -> str:
        return as_html(self._HEAD, self._rows(), "<>>>", total=True)


@contextmanager
def collectives() -> Iterator[Sent]:
    """List the collectives that run inside `with measure.collectives() as sent`, on real or local ranks."""
    sent = Sent()
    with Collectives(lambda kind, size, ranks: sent.append(Collective(kind, size, ranks))):
        yield sent


class LocalRanks:
    """The ranks of `measure.local_ranks`."""

    def __init__(self, count: int, mode: Any, sent: Sent):
        self.count, self.sent, self._mode = count, sent, mode

    def each(self, function: Callable[[int], Tensor]) -> Tensor:
        """One tensor of which every rank holds its own value, `function(rank)`. All values must have the same shape."""
        with self._mode.disable():
            values = [function(rank) for rank in range(self.count)]
        for rank, value in enumerate(values):
            if not isinstance(value, Tensor):
                raise ValueError(f"ranks.each needs a tensor for every rank, but rank {rank} got {value!r}.")
        return self._mode.rank_map(lambda rank: values[rank].detach())

    def values(self, tensor: Tensor) -> list[Tensor]:
        """The value that each rank holds, as plain tensors; all hold the same of a tensor made outside the ranks."""
        return [value.detach() for value in rank_values(tensor, self.count)]

    def __repr__(self) -> str:
        return f"{self.count} local ranks that have run {len(self.sent)} collectives"


@contextmanager
def local_ranks(count: int) -> Iterator[LocalRanks]:
    """`count` ranks inside this process: every line of plain torch runs once for each, and collectives combine them.

    `with measure.local_ranks(4) as ranks: x = ranks.each(lambda rank: torch.full((4,), float(rank))); dist.all_reduce(x)`.
    Tensors made inside have a value for every rank, forward and backward; `ranks.values(x)` lists them, `ranks.sent` the
    collectives. Nothing is really sent, and `dist.get_rank()` is 0: what a rank does alone (send, recv, `if rank == 0`)
    needs `measure.run_ranks`, and so do DDP and fully_shard. gather and scatter use rank 0 as the root.
    Errors: ValueError for a count below 1, RuntimeError if there is a process group already.
    """
    count = positive_int("count", count)
    if not torch.distributed.is_available():
        raise RuntimeError("this build of torch has no torch.distributed: install an ordinary one.")
    if torch.distributed.is_initialized():
        raise RuntimeError(
            "this process belongs to a process group already: leave the other `with measure.local_ranks`, or call "
            "torch.distributed.destroy_process_group()."
        )
    sent = Sent()
    with quiet_torch():
        mode, watch = start_local_ranks(count, lambda kind, size, ranks: sent.append(Collective(kind, size, ranks)))
        try:
            with mode, watch:
                yield LocalRanks(count, mode, sent)
        finally:
            torch.distributed.destroy_process_group()


@contextmanager
def fake_ranks(count: int, *, rank: int = 0) -> Iterator[None]:
    """A fake process group of `count` ranks that sends nothing and returns at once; this process is `rank`.

    Values that should come from other ranks are meaningless, but the sizes of all tensors are right.
    """
    positive_int("count", count)
    with quiet_torch():
        start_fake_ranks(count, rank)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Suppress torch's advice to use newer names of collectives, which the oldest supported torch does not have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.distributed", category=FutureWarning)
        yield
