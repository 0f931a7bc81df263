"""Simulate a program: which storages are alive after every operation, forward and backward.

The rules are those of torch's autograd engine. A node of the backward pass runs when its output's gradient is complete;
while it runs, the incoming gradient, what it saved, and what it returns are alive. Then each returned gradient is summed
to its input's shape and cast to its type, and the incoming gradient and what was saved are freed. A second gradient of the
same tensor is added to the first: in place with `sums_in_place` (unless somebody else still holds it, be it only as the base
of a view), else in a third tensor. Torch does the first; under a dispatch mode, such as `measure` uses, it does the second.

What is not the engine's is asked of three others: recomputation.py, gathering.py and parameter_gradients.py.
"""

from collections.abc import Callable, Sequence

from cs336kit.predict.engine.gathered import Gathered
from cs336kit.predict.engine.gathering import Gathering
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.nodes import as_computed, as_freed, is_view
from cs336kit.predict.engine.operations import EndOfCache, Free, Gradient, Hold, Item, Op, Program, Repeat, Storage
from cs336kit.predict.engine.parameter_gradients import ParameterGradients
from cs336kit.predict.engine.recomputation import EverythingIsBack, Recomputation

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

    A `ledger` that starts with gradients has those of earlier passes of the same step.
    """

    def __init__(self, program: Program, *, sums_in_place: bool = False, ledger: Ledger | None = None):
        self.sums_in_place = sums_in_place
        self.ledger = Ledger() if ledger is None else ledger
        self.recomputation = Recomputation(self.ledger)
        self.gathering = Gathering(program, self.ledger)
        self.gradients = ParameterGradients(program, self.ledger)
        self.marks: list[tuple[str, int]] = []
        #: source of a tensor → the storage of its gradient so far
        self.waiting: dict[object, Storage] = {}
        #: gradients that are views, whose bases still exist: nothing is added to them in place
        self.views = set[Storage]()
        #: what one micro-batch leaves alive when its forward pass ends
        self.microbatch = 0
        self.moment = "forward"
        self.repeated = 1

    def _repeat(self, block: Repeat, run: Callable[[], None], gathers: Gathered | None = None) -> tuple[int, int]:
        """Simulate one run for all: the others are alike. Returns (what is alive before, the difference that each run makes)."""
        shares, marks = self.gradients.shares, len(self.marks)
        self.repeated *= block.count
        start = self.ledger.first_run()
        run()
        each = self.ledger.other_runs(start, block, gathers)
        self.repeated //= block.count
        self.gradients.shares += (block.count - 1) * (self.gradients.shares - shares)
        inside, self.marks[marks:] = self.marks[marks:], []
        for run_number in range(block.count):
            self.marks += [(name, live + run_number * each) for name, live in inside]
        return start.live, each

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Op):
                if item.part == "loss":
                    self.gathering.loss()
                self._run(item)
                if item is self.recomputation.last:
                    raise EverythingIsBack
            elif isinstance(item, Free):
                for tensor in item.tensors:
                    storage = tensor.storage
                    if not storage.leaf:
                        self.ledger.drop(storage)
                        self.recomputation.let_go(storage)
            elif isinstance(item, Repeat):
                self._repeat_forward(item)
            elif isinstance(item, Hold):
                self._variable(item.storage)
            elif isinstance(item, EndOfCache):
                for storage, count in item.copies:
                    self.ledger.drop_runs(storage, count)
            elif self.recomputation.variables is None:
                self.marks.append((item.name, self.ledger.live))

    def _variable(self, storage: Storage) -> None:
        self.ledger.hold(storage)
        self.recomputation.assigned(storage, self.repeated)

    def _run(self, op: Op) -> None:
        # The last operation that runs again need not, if it saves only its inputs.
        if op.allocates and (op is not self.recomputation.last or op.saves_after):
            output, *statistics = op.allocates
            # Of a dropout the mask comes first.
            for storage in (*statistics, output) if op.kind == "dropout" else op.allocates:
                (self._variable if storage is output else self.ledger.hold)(storage)
            self._save(op)
            beside = op.forward_workspace if self.sums_in_place else ()
            self.ledger.see(self.moment, op.place, op.workspace if op.collectives else beside)
            for storage in statistics:
                self.ledger.drop(storage)
        else:
            self._save(op)

    def _save(self, op: Op) -> None:
        if self.recomputation.saving:
            for storage in op.saves:
                if not storage.leaf:
                    self.ledger.keep(storage)

    def _repeat_forward(self, block: Repeat) -> None:
        saving = self.recomputation.saving

        def run() -> None:
            self.gathering.run(block)
            self.recomputation.enter(block)
            self.forward(block.items)

        self.gathering.enter(block)
        self._repeat(block, run)
        self.gathering.leave(block)
        self.recomputation.saving = saving

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(self, items: Sequence[Item]) -> None:
        for item in reversed(items):
            if isinstance(item, Op):
                if self.gathering.before_head:
                    self.gathering.reach(item)
                self._node(item)
            elif isinstance(item, Repeat):
                self._repeat_backward(item)

    def _repeat_backward(self, block: Repeat) -> None:
        outermost = block.name == "block"
        if block.name in ("block", "blocks") and not any(name.endswith("backward") for name, _ in self.marks):
            self.marks.append(("head backward", self.ledger.live))

        def run() -> None:
            if outermost:
                self.gradients.enter()
            self.gathering.run_backward(block)
            if block.checkpoint is None:
                self.backward(block.items)
            else:
                self.recomputation.enter_backward(block)
                self.backward(block.items)
                self.recomputation.leave_backward()
            self.gathering.reduce(block)
            if outermost:
                self.gradients.leave()

        start, each = self._repeat(block, run, self.gathering.of(block))
        self.gathering.leave_backward(block)
        if outermost:
            self.marks += [("block backward", start + (run_number + 1) * each) for run_number in range(block.count)]

    def _recompute(self) -> None:
        """The backward pass runs a checkpointed block again, one of its runs."""
        self.moment, repeated, self.repeated = "recomputation", self.repeated, 1
        self.recomputation.run(self.forward)
        self.moment, self.repeated = "forward", repeated

    def _node(self, op: Op) -> None:
        """The backward pass of an operation."""
        waiting, checkpointed = self.waiting, self.recomputation.inside
        if op.saves and self.recomputation.ahead is not None:
            self._recompute()
        incoming = [waiting.pop(t.source) for t in op.outputs if t.source in waiting]
        if not op.gradients or not incoming:  # no input needs a gradient here, or nobody used the result
            for storage in incoming:
                self.ledger.drop(storage)
            self._release(op)
            self.recomputation.done(op)
            if op.kind == "receive":  # the input of a stage
                self.ledger.drop(op.allocates[0])
            return
        moment = _BACKWARD[op.part]
        returned: list[tuple[Gradient, Storage]] = []
        for gradient in as_computed(op):
            returned.append((gradient, self._returned(op, gradient, incoming)))
        if len(returned) > 1:
            returned.sort(key=lambda each: op.gradients.index(each[0]))
        self.ledger.see(
            moment, op.place, op.workspace if self.sums_in_place else (*op.workspace, op.dispatch_workspace)
        )
        if checkpointed:  # what was recomputed belongs to the node
            self._release(op)
        for i, (gradient, storage) in enumerate(returned):
            for size in gradient.then:
                storage = self.ledger.replace(storage, size, moment, op.place)
            returned[i] = gradient, storage
        for storage in incoming:
            self.ledger.drop(storage)
        if not checkpointed:
            self._release(op)
        self.recomputation.done(op)
        for gradient, storage in returned:
            self._collect(op, moment, gradient, storage)

    def _returned(self, op: Op, gradient: Gradient, incoming: Sequence[Storage]) -> Storage:
        """What a node returns for one of its inputs: the incoming gradient itself, or a new tensor."""
        storage = incoming[0] if gradient.bytes is None else Storage("gradient", gradient.bytes)
        if self.sums_in_place and is_view(op, gradient):
            self.views.add(storage)
        self.ledger.hold(storage)
        return storage

    def _release(self, op: Op) -> None:
        """A node frees what it saved."""
        for storage in as_freed(op, checkpointed=self.recomputation.inside):
            if not storage.leaf:
                self.ledger.release(storage)

    def _collect(self, op: Op, moment: str, gradient: Gradient, storage: Storage) -> None:
        """A gradient waits for the node that takes it, or is added to the one that waits already."""
        tensor = gradient.of
        source = tensor.source
        parameter = tensor.storage.leaf and source is tensor.storage  # and not a view of one
        first = self.waiting.get(source)
        if first is None:
            self.waiting[source] = self.gradients.first(tensor, storage, moment, op.place) if parameter else storage
        elif not self.sums_in_place or first in self.views or self.ledger.holds[first] > 1:
            self.waiting[source] = self.ledger.replace(first, first.bytes, moment, f"{op.place}, sum")
            self.ledger.drop(storage)
        else:
            self.ledger.drop(storage)
        if parameter:
            self.gradients.come(source, self.waiting[source])
