"""Simulate a program: which storages are alive after every operation, forward and backward.

The rules are those of torch's autograd engine. A node of the backward pass runs when its output's gradient is complete;
while it runs, the incoming gradient, what it saved, and what it returns are alive. Then each returned gradient is summed
to its input's shape and cast to its type, and the incoming gradient and what was saved are freed. A second gradient of the
same tensor is added to the first: in place with `sums_in_place` (unless somebody else still holds it, be it only as the base
of a view), else in a third tensor. Torch does the first; under a dispatch mode, such as `measure` uses, it does the second.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from cs336kit.predict.engine.gathered import GATHERING, REDUCING, Gathered
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.nodes import as_computed, as_freed, is_view
from cs336kit.predict.engine.operations import (
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
    operations,
)
from cs336kit.predict.engine.states import held_elements


class _EverythingIsBack(Exception):
    """Early stop of a checkpointed block."""


#: Part of the model → the name of its backward moment.
_BACKWARD = {
    "embedding": "embedding backward",
    "norms": "norm backward",
    "attention": "attention backward",
    "mlp": "mlp backward",
    "head": "head backward",
    "loss": "loss",
}


class Walk:
    """A forward and a backward pass. `ledger`: what is alive, and the most at each moment; `marks`: live bytes between stages.

    If the layout shards gradients (ZeRO stages 2 and 3), a block's gradients are reduce-scattered when its backward pass
    ends, and those of the tables and the head at the end; if it shards parameters (stage 3), gathered ones are alive
    temporarily. A `ledger` that starts with gradients has those of earlier passes of the same step (gradient
    accumulation): a parameter's new gradient is added to the old one and freed.
    """

    def __init__(self, program: Program, *, sums_in_place: bool = False, ledger: Ledger | None = None):
        self.sums_in_place, self.layout = sums_in_place, program.layout
        self.ledger = Ledger() if ledger is None else ledger
        #: whether a rank keeps only a shard of each gradient
        self.divided = self.layout.stage >= 2
        self.gradient_size = ELEMENT_BYTES[program.policy.gradients]
        self.weight_size = ELEMENT_BYTES[program.policy.weights]
        #: the rules by which parameters are gathered
        self.gathers = Gathered(program, self.ledger.rounded) if program.layout.stage == 3 else None
        if self.gathers is not None:
            self.ledger.stand(self.gathers.start)
        #: whether the backward pass has not reached the head yet, at which the last block is gathered
        self.in_loss = self.gathers is not None
        #: with accumulation: gradients still to come for a parameter, before their sum is added to the old one
        self.to_come = _uses(program) if self.ledger.gradients else None
        self.marks: list[tuple[str, int]] = []
        #: source of a tensor → the storage of its gradient so far
        self.waiting: dict[object, Storage] = {}
        #: gradients that are views, whose bases still exist: nothing is added to them in place
        self.views = set[Storage]()
        #: gradients of the tables, the final norm and the head, which are reduced when the backward pass ends
        self.outside_blocks = self.outside_shares = 0
        #: what this rank keeps of the gradients so far
        self.shares = 0
        #: what one micro-batch leaves alive when its forward pass ends
        self.microbatch = 0
        self.in_block = False
        self.saving = True
        self.moment = "forward"
        self.repeated = 1
        #: the checkpointed block whose backward pass runs, until it has been recomputed
        self.to_recompute: Repeat | None = None
        self.checkpointed = False
        #: the operation whose backward pass is the last to hold on to a checkpointed block, and the block's input
        self.held_by: tuple[Op | None, Storage] | None = None
        #: while a block is recomputed: the operation that brings back the last saved tensor, and what variables hold
        self.last: Op | None = None
        self.variables: dict[Storage, list[int]] | None = None

    def _release(self, op: Op) -> None:
        for storage in as_freed(op, checkpointed=self.checkpointed):
            if not storage.leaf:
                self.ledger.release(storage)

    def _release_block(self, op: Op) -> None:
        """The last node that holds a checkpointed block releases it together with its own variables."""
        if self.held_by is not None and op is self.held_by[0]:
            self.ledger.release(self.held_by[1])
            self.held_by = None

    def _repeat(self, block: Repeat, run: Callable[[], None], gathers: Gathered | None = None) -> tuple[int, int]:
        """Simulate one run for all: the others are alike. Returns (what is alive before, the difference that each run makes)."""
        shares, marks = self.shares, len(self.marks)
        self.repeated *= block.count
        start = self.ledger.first_run()
        run()
        each = self.ledger.other_runs(start, block, gathers)
        self.repeated //= block.count
        self.shares += (block.count - 1) * (self.shares - shares)
        inside, self.marks[marks:] = self.marks[marks:], []
        for run_number in range(block.count):
            self.marks += [(name, live + run_number * each) for name, live in inside]
        return start.live, each

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Op):
                if self.gathers is not None and item.part == "loss":
                    self.ledger.stand(self.gathers.loss)
                self._run(item)
                if item is self.last:
                    raise _EverythingIsBack
            elif isinstance(item, Free):
                for tensor in item.tensors:
                    storage = tensor.storage
                    if not storage.leaf:
                        self.ledger.drop(storage)
                        if self.variables is not None and (runs := self.variables.get(storage)):
                            runs.pop()
            elif isinstance(item, Repeat):
                self._repeat_forward(item)
            elif isinstance(item, Hold):
                self._variable(item.storage)
            elif isinstance(item, EndOfCache):
                for storage, count in item.copies:
                    self.ledger.drop_runs(storage, count)
            elif self.variables is None:
                self.marks.append((item.name, self.ledger.live))

    def _variable(self, storage: Storage) -> None:
        self.ledger.hold(storage)
        if self.variables is not None:
            self.variables.setdefault(storage, []).append(self.repeated)

    def _run(self, op: Op) -> None:
        # The last operation that is recomputed need not run if it saves only its inputs.
        if op.allocates and not (self.saving and op is self.last and not op.keeps_after):
            output, *statistics = op.allocates
            # Of a dropout the mask comes first.
            for storage in (*statistics, output) if op.kind == "dropout" else op.allocates:
                (self._variable if storage is output else self.ledger.hold)(storage)
            self._save(op)
            beside = op.passing if self.sums_in_place else ()
            self.ledger.see(self.moment, op.place, op.scratch if op.wires else beside)
            for storage in statistics:
                self.ledger.drop(storage)
        else:
            self._save(op)

    def _save(self, op: Op) -> None:
        if self.saving:
            for storage in op.keeps:
                if not storage.leaf:
                    self.ledger.keep(storage)

    def _repeat_forward(self, block: Repeat) -> None:
        saving = self.saving
        gathers = self.gathers if block.name == "block" else None
        if gathers is not None:
            self.ledger.stand(gathers.entering(block, 0), GATHERING)

        def run() -> None:
            if gathers is not None:
                if block.count > 1:  # the state that every run but the first starts from
                    self.ledger.stand(gathers.entering(block, 1), GATHERING)
                self.ledger.stand(gathers.forward(block))
            if block.checkpoint is not None and saving:
                self.ledger.keep(block.checkpoint)
                self.saving = False
            self.forward(block.items)

        self._repeat(block, run)
        if gathers is not None:
            self.ledger.stand(gathers.behind(block))
        self.saving = saving

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(self, items: Sequence[Item]) -> None:
        for item in reversed(items):
            if isinstance(item, Op):
                if self.in_loss and self.gathers is not None and item.part != "loss":
                    self.in_loss = False
                    self.ledger.stand(self.gathers.head)
                self._node(item)
            elif isinstance(item, Repeat):
                self._repeat_backward(item)

    def _repeat_backward(self, block: Repeat) -> None:
        outermost = block.name == "block"
        if block.name in ("block", "blocks") and not any(name.endswith("backward") for name, _ in self.marks):
            self.marks.append(("head backward", self.ledger.live))

        gathers = self.gathers if outermost else None
        if gathers is not None:
            self.in_loss = False

        def run() -> None:
            before, shares, inside = self.ledger.gradients, self.shares, self.in_block
            self.in_block = inside or outermost
            if gathers is not None:
                self.ledger.stand(gathers.entering_backward(block, 0), GATHERING)
                self.ledger.stand(gathers.backward(block, 0))
            if block.checkpoint is None:
                self.backward(block.items)
            else:
                self.checkpointed, self.to_recompute = True, block
                self.held_by = next((op for op, _ in operations(block.items) if op.keeps), None), block.checkpoint
                self.backward(block.items)
                self.checkpointed, self.to_recompute = False, None
                if self.held_by is not None:
                    self.ledger.release(block.checkpoint)
            self.in_block = inside
            if gathers is not None:
                self.ledger.stand(gathers.reducing(block, 0), REDUCING)
            if outermost:
                self.scatter(self.ledger.gradients - before, self.shares - shares)

        start, each = self._repeat(block, run, gathers)
        if gathers is not None:
            self.ledger.stand(gathers.embedding)
        if outermost:
            self.marks += [("block backward", start + (run_number + 1) * each) for run_number in range(block.count)]

    def scatter(self, gradients: int, share: int) -> None:
        """Of these bytes of gradients, each rank keeps its shard, or adds it to the shard that it has."""
        if self.divided:
            gone = gradients - (0 if self.to_come is not None else share)
            self.ledger.live -= gone
            self.ledger.gradients -= gone

    def _recompute(self, block: Repeat) -> None:
        """Run the block again until all that it saves is back; the last node need not run if it saves only its inputs."""
        self.to_recompute = None
        self.last = [op for op, _ in operations(block.items) if op.keeps][-1]
        variables: dict[Storage, list[int]] = {}
        self.variables = variables
        repeated, self.repeated = self.repeated, 1
        self.moment = "recomputation"
        with suppress(_EverythingIsBack):
            self.forward(block.items)
        self.moment, self.repeated = "forward", repeated
        self.last = self.variables = None
        for storage, runs in variables.items():
            for count in runs:
                self.ledger.drop_runs(storage, count)

    def _node(self, op: Op) -> None:
        waiting, checkpointed = self.waiting, self.checkpointed
        if op.keeps and self.to_recompute is not None:
            self._recompute(self.to_recompute)
        incoming = [waiting.pop(t.source) for t in op.outputs if t.source in waiting]
        if not op.gradients or not incoming:  # no input needs a gradient here, or nobody used the result
            for storage in incoming:
                self.ledger.drop(storage)
            self._release(op)
            self._release_block(op)
            if op.kind == "receive":  # the input of a stage
                self.ledger.drop(op.allocates[0])
            return
        moment = _BACKWARD[op.part]
        returned: list[tuple[Gradient, Storage]] = []
        for gradient in as_computed(op):
            returned.append((gradient, self._returned(op, gradient, incoming)))
        if len(returned) > 1:
            returned.sort(key=lambda each: op.gradients.index(each[0]))
        self.ledger.see(moment, op.place, op.scratch if self.sums_in_place else (*op.scratch, op.watched))
        if checkpointed:  # what was recomputed belongs to the node
            self._release(op)
        for i, (gradient, storage) in enumerate(returned):
            for size in gradient.then:
                storage = self._replaced(storage, size, moment, op.place)
            returned[i] = gradient, storage
        for storage in incoming:
            self.ledger.drop(storage)
        if not checkpointed:
            self._release(op)
        self._release_block(op)
        for gradient, storage in returned:
            self._collect(op, moment, gradient, storage)

    def _returned(self, op: Op, gradient: Gradient, incoming: Sequence[Storage]) -> Storage:
        """What a node returns for one of its inputs: the incoming gradient itself, or a new tensor."""
        storage = incoming[0] if gradient.bytes is None else Storage("gradient", gradient.bytes)
        if self.sums_in_place and is_view(op, gradient):
            self.views.add(storage)
        self.ledger.hold(storage)
        return storage

    def _collect(self, op: Op, moment: str, gradient: Gradient, storage: Storage) -> None:
        tensor = gradient.of
        source = tensor.source
        parameter = tensor.storage.leaf and source is tensor.storage  # and not a view of one
        first = self.waiting.get(source)
        if first is None:
            self.waiting[source] = storage
            if parameter:
                if self.gradient_size != self.weight_size:  # gradients are accumulated in this type
                    size = storage.bytes // self.weight_size * self.gradient_size
                    storage = self.waiting[source] = self._replaced(storage, size, moment, op.place)
                share = self.ledger.rounded(held_elements(self.layout, tensor, 2) * self.gradient_size)
                self.ledger.gradients += self.ledger.size(storage)
                self.shares += share
                if not self.in_block:
                    self.outside_blocks += self.ledger.size(storage)
                    self.outside_shares += share
        elif not self.sums_in_place or first in self.views or self.ledger.holds[first] > 1:
            self.waiting[source] = self._replaced(first, first.bytes, moment, f"{op.place}, sum")
            self.ledger.drop(storage)
        else:
            self.ledger.drop(storage)
        if parameter:
            self._accumulate(source, self.waiting[source])

    def _accumulate(self, source: object, storage: Storage) -> None:
        """After a parameter's last gradient in this pass, their sum is added to the old one in place and freed."""
        if self.to_come is not None:
            self.to_come[source] -= 1
            if not self.to_come[source] and not self.divided:
                self.ledger.gradients -= self.ledger.size(storage)
                self.ledger.drop(storage)

    def _replaced(self, old: Storage, size: int, moment: str, place: str) -> Storage:
        """A gradient of `size` bytes, which is alive together with the one that it is made from, until that is dropped."""
        new = Storage("gradient", size)
        self.ledger.hold(new)
        self.ledger.see(moment, place)
        self.ledger.drop(old)
        return new


def _uses(program: Program) -> dict[object, int]:
    """Source of each tensor → how many operations give it a gradient, those of a repeated part once."""
    return Counter(gradient.of.source for op, _ in program.operations() for gradient in op.gradients)
