"""Run a program in the mind: which storages are alive after every operation, forward and backward.

The rules are those of torch's autograd engine. A node of the backward pass runs when its output's gradient is complete;
while it runs, the incoming gradient, what it kept, and what it returns are alive. Then each returned gradient is summed
to its input's shape and cast to its type, the incoming gradient goes, and what was kept goes. A second gradient of the same
tensor is added to the first: in place with `sums_in_place` (unless somebody else still holds it, or it belongs to a
parameter), else in a third tensor. Torch does the first; while a dispatch mode watches, as `measure` does, the second.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cs336kit.predict._collectives import OF_EXPERTS
from cs336kit.predict.layouts import shard_elements
from cs336kit.predict.operations import (
    ELEMENT_BYTES,
    EndOfCache,
    Free,
    Gradient,
    Hold,
    Item,
    Op,
    Program,
    Repeat,
    Storage,
    Tensor,
    operations,
)


class _EverythingIsBack(Exception):
    """Early stop of a checkpointed block."""


class Alive(NamedTuple):
    """Bytes alive at a moment, beyond parameters and optimizer state: gradients of parameters and kept tensors among them."""

    bytes: int
    gradients: int
    kept: int
    place: str


#: Part of the model → the moment of its backward pass.
_BACKWARD = {
    "embedding": "embedding backward",
    "norms": "norm backward",
    "attention": "attention backward",
    "mlp": "mlp backward",
    "head": "head backward",
    "loss": "loss",
}


class Walk:
    """One forward and one backward pass. `peaks`: the most that is alive in each moment; `marks`: what is at each border.

    Where the program's layout divides gradients (ZeRO stages 2 and 3), a block's are reduced and scattered when its
    backward pass ends, and those of the tables and the head at the end. `again`: a microbatch that is not the first,
    whose gradients are added to those that are there.
    """

    def __init__(self, program: Program, *, sums_in_place: bool = False, again: bool = False):
        self.sums_in_place, self.layout, self.again = sums_in_place, program.layout, again
        self.divided = self.layout.stage >= 2
        self.gradient_size = ELEMENT_BYTES[program.policy.gradients]
        self.weight_size = ELEMENT_BYTES[program.policy.weights]
        self.live = self.gradients = self.kept = 0
        self.peaks: dict[str, Alive] = {}
        self.marks: list[tuple[str, int]] = []
        #: who holds a storage: variables, gradients on their way, operations that keep it
        self.holds: dict[Storage, int] = {}
        self.keeping: dict[Storage, int] = {}
        #: source of a tensor → the storage of its gradient so far
        self.waiting: dict[object, Storage] = {}
        #: gradients of the tables, the final norm and the head, which are reduced when the backward pass ends
        self.outside_blocks = self.outside_shares = 0
        #: what this rank keeps of the gradients of parameters so far
        self.shares = 0
        #: gradients of a parameter that are still to come, where it has several
        self.uses: dict[object, int] = {}
        #: what a microbatch leaves behind when its forward pass ends
        self.microbatch = 0
        if again:
            self._start_again(program)
        self.in_block = False
        self.saving = True
        self.moment = "forward"
        self.repeated = 1
        #: the checkpointed block whose backward pass runs, until it has been computed again
        self.to_recompute: Repeat | None = None
        self.checkpointed = False
        #: while a block is computed again: the operation that brings back the last kept tensor, and what variables hold
        self.last: Op | None = None
        self.variables: dict[Storage, int] | None = None

    def _start_again(self, program: Program) -> None:
        for leaf in program.leaves:
            if leaf.tensor.needs_gradient:
                self.live += leaf.count * self._share(leaf.tensor)
        self.gradients = self.live
        for op, _ in program.operations():
            for gradient in op.gradients:
                if gradient.of.storage.leaf:
                    self.uses[gradient.of.source] = self.uses.get(gradient.of.source, 0) + 1

    def _share(self, parameter: Tensor) -> int:
        """Bytes that this rank keeps of a parameter's gradient."""
        held = parameter.elements
        if self.divided:
            expert = self.layout.ep > 1 and parameter.storage.name in OF_EXPERTS
            held = shard_elements(parameter.shape, self.layout.sharing(expert))
        return held * self.gradient_size

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def hold(self, storage: Storage) -> None:
        held = self.holds.get(storage, 0)
        if not held:
            self.live += storage.bytes
        self.holds[storage] = held + 1

    def drop(self, storage: Storage) -> None:
        held = self.holds[storage] - 1
        if held:
            self.holds[storage] = held
        else:
            del self.holds[storage]
            self.live -= storage.bytes

    def keep(self, op: Op) -> None:
        for storage in op.keeps:
            if not storage.leaf:
                self.hold(storage)
                kept = self.keeping.get(storage, 0)
                if not kept:
                    self.kept += storage.bytes
                self.keeping[storage] = kept + 1

    def release(self, op: Op) -> None:
        for storage in op.keeps:
            if not storage.leaf:
                kept = self.keeping[storage] = self.keeping[storage] - 1
                if not kept:
                    self.kept -= storage.bytes
                self.drop(storage)

    def see(self, moment: str, place: str, extra: int = 0) -> None:
        """Compare with the highest so far in this moment."""
        live = self.live + extra
        highest = self.peaks.get(moment)
        if highest is None or live > highest[0]:
            self.peaks[moment] = Alive(live, self.gradients, self.kept, place)

    # -- repetition --------------------------------------------------------------------------------------------------

    def _repeat(self, block: Repeat, run: Callable[[], None]) -> tuple[int, int]:
        """Run once for all: the other runs are alike, each from where the one before ended. Returns (start, difference).

        Between the first run and the last the live bytes change evenly, so one of these two holds the peak.
        """
        before = self.live, self.gradients, self.kept
        shares = self.shares
        outside, self.peaks = self.peaks, {}
        self.repeated *= block.count
        run()
        self.repeated //= block.count
        rest = block.count - 1
        each = self.live - before[0], self.gradients - before[1], self.kept - before[2]
        live, gradients, kept = (rest * change for change in each)
        self.live += live
        self.gradients += gradients
        self.kept += kept
        self.shares += rest * (self.shares - shares)
        inside, self.peaks = self.peaks, outside
        for moment, peak in inside.items():
            if live > 0:
                peak = Alive(peak.bytes + live, peak.gradients + gradients, peak.kept + kept, peak.place)
            highest = outside.get(moment)
            if highest is None or peak.bytes > highest.bytes:
                outside[moment] = peak
        return before[0], each[0]

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._run(item)
                if item is self.last:
                    raise _EverythingIsBack
            elif isinstance(item, Free):
                for storage in item.storages:
                    if not storage.leaf:
                        self.drop(storage)
                        if self.variables is not None:
                            self.variables.pop(storage, None)
            elif isinstance(item, Repeat):
                self._repeat_forward(item)
            elif isinstance(item, Hold):
                self._variable(item.storage)
            elif isinstance(item, EndOfCache):
                self._let_go(item.copies)
            elif self.variables is None:
                self.marks.append((item.name, self.live))

    def _variable(self, storage: Storage) -> None:
        self.hold(storage)
        if self.variables is not None:
            self.variables[storage] = self.repeated

    def _run(self, op: Op) -> None:
        if self.saving:
            self.keep(op)
            if op is self.last and not op.keeps_after:
                return
        if not op.allocates:
            return
        output, *statistics = op.allocates
        self._variable(output)
        for storage in statistics:
            self.hold(storage)
        self.see(self.moment, op.place)
        for storage in statistics:
            self.drop(storage)

    def _repeat_forward(self, block: Repeat) -> None:
        saving, marks = self.saving, len(self.marks)

        def run() -> None:
            if block.checkpoint is not None and saving:
                self.hold(block.checkpoint)
                self.kept += block.checkpoint.bytes
                self.saving = False
            self.forward(block.items)

        _, each = self._repeat(block, run)
        self.saving = saving
        inside, self.marks[marks:] = self.marks[marks:], []
        for run_number in range(block.count if inside else 0):
            self.marks += [(name, live + run_number * each) for name, live in inside]

    def _let_go(self, held: Iterable[tuple[Storage, int]]) -> None:
        """Drop each storage with those of the other runs, of which there are `count` in all."""
        for storage, count in held:
            if self.holds[storage] == 1:
                self.live -= (count - 1) * storage.bytes
            self.drop(storage)

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(self, items: Sequence[Item]) -> None:
        for item in reversed(items):
            if isinstance(item, Op):
                self._node(item)
            elif isinstance(item, Repeat):
                self._repeat_backward(item)

    def _repeat_backward(self, block: Repeat) -> None:
        outermost = block.name == "block"
        if outermost and not any(name.endswith("backward") for name, _ in self.marks):
            self.marks.append(("head backward", self.live))

        def run() -> None:
            before, shares, inside, self.in_block = self.gradients, self.shares, self.in_block, True
            if block.checkpoint is None:
                self.backward(block.items)
            else:
                self.checkpointed, self.to_recompute = True, block
                self.backward(block.items)
                self.checkpointed, self.to_recompute = False, None
                self.kept -= block.checkpoint.bytes
                self.drop(block.checkpoint)
            self.in_block = inside
            if outermost:
                self.scatter(self.gradients - before, self.shares - shares)

        start, each = self._repeat(block, run)
        if outermost:
            self.marks += [("block backward", start + (run_number + 1) * each) for run_number in range(block.count)]

    def scatter(self, gradients: int, share: int) -> None:
        """Of these bytes of gradients, each rank keeps its share, or adds it to what it has."""
        if self.divided:
            gone = gradients if self.again else gradients - share
            self.live -= gone
            self.gradients -= gone

    def _recompute(self, block: Repeat) -> None:
        """Run the block again until everything that it keeps is back; a node that keeps its inputs need not run for that."""
        self.to_recompute = None
        self.last = [op for op, _ in operations(block.items) if op.keeps][-1]
        variables: dict[Storage, int] = {}
        self.variables = variables
        repeated, self.repeated = self.repeated, 1
        self.moment = "recomputation"
        with suppress(_EverythingIsBack):
            self.forward(block.items)
        self.moment, self.repeated = "forward", repeated
        self.last = self.variables = None
        self._let_go(variables.items())

    def _node(self, op: Op) -> None:
        waiting, checkpointed = self.waiting, self.checkpointed
        if op.keeps and self.to_recompute is not None:
            self._recompute(self.to_recompute)
        incoming = [waiting.pop(t.source) for t in op.outputs if t.source in waiting]
        if not op.gradients or not incoming:  # nothing asks for a gradient here, or nobody used the result
            for storage in incoming:
                self.drop(storage)
            self.release(op)
            return
        moment = _BACKWARD[op.part]
        returned: list[tuple[Gradient, Storage]] = []
        for gradient in op.gradients:
            storage = incoming[0] if gradient.bytes is None else Storage("gradient", gradient.bytes)
            self.hold(storage)
            returned.append((gradient, storage))
        self.see(moment, op.place, op.scratch if self.sums_in_place else op.scratch + op.watched)
        if checkpointed:  # what was recomputed lived in the node's own hands
            self.release(op)
        for i, (gradient, storage) in enumerate(returned):
            for size in gradient.then:
                new = Storage("gradient", size)
                self.hold(new)
                self.see(moment, op.place)
                self.drop(storage)
                storage = new
            if gradient.then:
                returned[i] = gradient, storage
        for storage in incoming:
            self.drop(storage)
        if not checkpointed:
            self.release(op)
        for gradient, storage in returned:
            self._collect(op, moment, gradient, storage)

    def _collect(self, op: Op, moment: str, gradient: Gradient, storage: Storage) -> None:
        tensor = gradient.of
        source, parameter = tensor.source, tensor.storage.leaf
        first = self.waiting.get(source)
        if first is None:
            self.waiting[source] = storage
            if parameter:
                adds = self.again and not self.divided
                if self.gradient_size != self.weight_size and not adds:
                    storage = self.waiting[source] = self._wider(moment, op, storage)
                self.gradients += storage.bytes
                self.shares += self._share(tensor)
                if not self.in_block:
                    self.outside_blocks += storage.bytes
                    self.outside_shares += self._share(tensor)
        elif not self.sums_in_place or parameter or self.holds[first] > 1:
            total = Storage("gradient", first.bytes)
            self.hold(total)
            self.see(moment, f"{op.place}, sum")
            self.drop(first)
            self.drop(storage)
            self.waiting[source] = total
        else:
            self.drop(storage)
        if parameter and self.again and not self.divided:
            self._add_to_gradient(source)

    def _add_to_gradient(self, source: object) -> None:
        """In place, once every use of the parameter has brought its part."""
        self.uses[source] -= 1
        if not self.uses[source]:
            storage = self.waiting.pop(source)
            self.gradients -= storage.bytes
            self.drop(storage)

    def _wider(self, moment: str, op: Op, storage: Storage) -> Storage:
        """The gradient of a parameter in the type in which gradients are accumulated."""
        wide = Storage("gradient", storage.bytes // self.weight_size * self.gradient_size)
        self.hold(wide)
        self.see(moment, op.place)
        self.drop(storage)
        return wide
