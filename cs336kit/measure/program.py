"""One forward pass as torch ran it: a list of operations, to compare with the list that `predict` gives."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cs336kit import _torch
from cs336kit._torch.flops import flop_counter
from cs336kit.measure._trace import OUTSIDE, Frame, LiveStorages, SavedTensor, Trace
from cs336kit.measure.device import runnable
from cs336kit.measure.memory import no_gradients
from cs336kit.predict.checks import boolean
from cs336kit.predict.grid import as_html, as_text

#: What is counted of an operation while it runs.
_COUNTED = ("flops", "backward_flops", "output_bytes", "backward_bytes")
#: The columns of the table.
_QUANTITIES = ("flops", "backward_flops", "saved_bytes", "output_bytes", "backward_bytes")


@dataclass(frozen=True)
class TracedOp:
    """One call of a torch function in the forward pass, with its part of the backward pass."""

    #: path of the module whose code calls it, below the model: "blocks.0.attention.query"; "" in the model itself
    place: str
    #: the function: "linear", "layer_norm", "add"
    name: str
    flops: int
    #: the storages that autograd saves for it, each listed only at the first operation that saves it
    saved: tuple[SavedTensor, ...]
    #: bytes that it allocates and that are still alive when it returns: its result, and what it saves
    output_bytes: int
    #: FLOPs of its gradients, and of its recomputation under checkpointing
    backward_flops: int = 0
    #: bytes that its backward allocates and that are alive when the next one starts: the gradients that it passes on
    backward_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes of the storages in `saved`."""
        return sum(tensor.bytes for tensor in self.saved)


@dataclass(frozen=True)
class TracedProgram:
    """The operations of a forward pass in order; `peak_bytes` is the most that was alive in everything that ran."""

    operations: tuple[TracedOp, ...]
    peak_bytes: int
    #: where the peak was: place and name of an operation, followed by "(backward)" if it was in its backward
    peak_at: str

    @property
    def flops(self) -> int:
        """FLOPs of the forward pass."""
        return sum(op.flops for op in self.operations)

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass, including recomputation under checkpointing; 0 if it did not run."""
        return sum(op.backward_flops for op in self.operations)

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for the backward pass, as `measure.saved_activation_bytes` counts them."""
        return sum(op.saved_bytes for op in self.operations)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield "place", "operation", *_QUANTITIES
        for op in self.operations:
            yield op.place or "(model)", op.name, *(f"{getattr(op, quantity):,}" for quantity in _QUANTITIES)
        yield "total", "", *(f"{sum(getattr(op, quantity) for op in self.operations):,}" for quantity in _QUANTITIES)

    def __repr__(self) -> str:
        return as_text(list(self._rows()), "<<>>>>>", gap=2)

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        return as_html(head, body, "<<>>>>>", total=True)


def program(model: nn.Module, loss: Callable[[], Tensor], *, backward: bool = False) -> TracedProgram:
    """Run `loss()`, which calls `model`, and list the operations that torch ran, in forward order.

    The list has every call of a torch function that allocates a storage, multiplies matrices, writes in place or saves a
    tensor, but no views. Nested calls belong to the outer function (`F.cross_entropy` is one operation). `backward=True`
    also runs the backward pass, attributes it to the operations (then also to a view whose gradient is a new tensor), and
    leaves the gradients. `teach.side_by_side` compares the list with that of `predict.program`. Conventions as in
    `measure.flops`, `saved_activation_bytes` and `memory_timeline`: beyond what existed before, without scratch memory.
    Errors: TypeError if `loss` cannot be called, ValueError for old gradients or a result that is not a scalar with a graph.
    """
    runnable("measure.program", loss)
    if boolean("backward", backward):
        no_gradients(model)
    recorder = _Recorder()
    trace = recorder.trace
    try:
        trace.own(model.buffers(), "buffer")
        trace.own(model.parameters(), "parameter")
        # The counter decomposes some operators, so it is outside the tracker, which sees them as they would run without it.
        with trace.watching(saved=True), flop_counter(recorder.count), recorder.storages:
            output = loss()
        saved = trace.saved()
        if backward:
            if not isinstance(output, Tensor) or output.numel() != 1 or not output.requires_grad:
                raise ValueError(
                    "backward starts from a loss: the function must return one number that requires a gradient."
                )
            with flop_counter(recorder.count), recorder.storages:
                seed = torch.ones_like(output)
                with trace.watching():
                    _torch.run_backward(output, seed)
            recorder.settle()
        return TracedProgram(recorder.operations(saved), recorder.peak, recorder.peak_at)
    finally:
        # Both refer back to the recorder: the cycle would keep the model alive until garbage collection.
        del recorder.trace, recorder.storages


class _Recorder:
    """Collects FLOPs and bytes of each call, forward and backward, by the names of TracedOp's fields."""

    def __init__(self) -> None:
        self.trace = Trace(leaving=self._left)
        self.storages = LiveStorages(starting=self._starting, ran=self._ran)
        self.peak, self.peak_at = 0, ""
        self._done: dict[Frame, Counter[str]] = {}
        #: the running call, whether it is in backward, and the storages that it made
        self._here = self.trace.frame(), _torch.in_backward()
        self._made: set[int] = set()

    def count(self, operator: str, amount: int) -> None:
        frame, backward = self.trace.frame(), _torch.in_backward()
        self._amounts(frame)["backward_flops" if backward else "flops"] += amount

    def settle(self) -> None:
        """End the running call: what it made and is still alive is its result."""
        frame, backward = self._here
        alive = sum(self.storages.sizes.get(key) or 0 for key in self._made)
        if alive:
            # Outside all calls, only autograd allocates something: the first gradient.
            self._amounts(frame)["backward_bytes" if backward or frame is OUTSIDE else "output_bytes"] += alive
        self._made.clear()

    def operations(self, saved: list[tuple[Frame, SavedTensor]]) -> tuple[TracedOp, ...]:
        """Every call that did something, in the order in which they began; a recomputed call adds to the first one."""
        kept: dict[Frame, list[SavedTensor]] = {}
        for frame, tensor in saved:
            if tensor.role == "activation":
                kept.setdefault(frame, []).append(tensor)
        amounts: dict[Frame, Counter[str]] = {frame: Counter() for frame in kept}
        first: dict[tuple[str, str], list[Frame]] = {}
        repeated: Counter[tuple[str, str]] = Counter()
        for frame, done in sorted(self._done.items(), key=lambda item: item[0].serial):
            name = (frame.module, frame.operation)
            if not frame.again:
                first.setdefault(name, []).append(frame)
            elif repeated[name] < len(first.get(name, ())):
                repeated[name] += 1
                frame = first[name][repeated[name] - 1]
            amounts.setdefault(frame, Counter()).update(done)
        return tuple(
            TracedOp(
                frame.place, _name(frame), saved=tuple(kept.get(frame, ())), **{key: done[key] for key in _COUNTED}
            )
            for frame, done in sorted(amounts.items(), key=lambda item: (item[0] is OUTSIDE, item[0].serial))
        )

    def _amounts(self, frame: Frame) -> Counter[str]:
        return self._done.setdefault(frame, Counter())

    def _starting(self) -> None:
        here = self.trace.frame(), _torch.in_backward()
        if here != self._here:
            self.settle()
            self._here = here

    def _ran(self, operator: Any, made: set[int]) -> None:
        if made or _torch.writes(operator):
            self._amounts(self._here[0])
            self._made |= made
        if self.storages.live > self.peak:
            frame, backward = self._here
            place = f"{frame.place}/{_name(frame)}".lstrip("/") + " (backward)" * backward
            self.peak, self.peak_at = self.storages.live, place

    def _left(self, frame: Frame) -> None:
        if frame is self._here[0]:
            self.settle()


def _name(frame: Frame) -> str:
    # Autograd itself makes the first gradient; nodes outside torch functions belong to an autograd.Function.
    return "autograd" if frame is OUTSIDE else frame.operation or "autograd.Function"
