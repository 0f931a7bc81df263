"""Checkpointed blocks in a walk: what they save, and what runs again. Follows torch.utils.checkpoint with use_reentrant=False."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import Item, Op, Repeat, Storage, operations


class EverythingIsBack(Exception):
    """Early stop of a block that runs again."""


class Recomputation:
    """Which block is checkpointed, and how far it is. The forward pass of such a block saves its input alone; when its backward
    pass needs the first saved tensor, the block runs again until the last one is back.
    """

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        #: whether operations save what their backward passes need
        self.saving = True
        #: whether the backward pass of a checkpointed block runs
        self.inside = False
        #: the block whose backward pass runs, until it has run again
        self.ahead: Repeat | None = None
        #: while a block runs again: the operation that brings back the last saved tensor
        self.last: Op | None = None
        #: while a block runs again: what variables hold, with the number of runs of each
        self.variables: dict[Storage, list[int]] | None = None
        #: the operation whose backward pass is the last to hold on to the block, and the block's input
        self._held_by: tuple[Op | None, Storage] | None = None

    def enter(self, block: Repeat) -> None:
        """The forward pass of a block begins; who calls sets `saving` back at its end."""
        if block.checkpoint is not None and self.saving:
            self.ledger.keep(block.checkpoint)
            self.saving = False

    def enter_backward(self, block: Repeat) -> None:
        """The backward pass of a checkpointed block begins."""
        assert block.checkpoint is not None
        self.inside, self.ahead = True, block
        self._held_by = next((op for op, _ in operations(block.items) if op.saves), None), block.checkpoint

    def leave_backward(self) -> None:
        """It ends."""
        self.inside, self.ahead = False, None
        if self._held_by is not None:
            self.ledger.release(self._held_by[1])
            self._held_by = None

    def run(self, forward: Callable[[Sequence[Item]], None]) -> None:
        """Run the block again; the last node need not run if it saves only its inputs. Its variables go at the end."""
        assert self.ahead is not None
        items, self.ahead = self.ahead.items, None
        self.last = [op for op, _ in operations(items) if op.saves][-1]
        variables = self.variables = dict[Storage, list[int]]()
        with suppress(EverythingIsBack):
            forward(items)
        self.last = self.variables = None
        for storage, runs in variables.items():
            for count in runs:
                self.ledger.drop_runs(storage, count)

    def assigned(self, storage: Storage, runs: int) -> None:
        """A variable holds it now, in each of these runs."""
        if self.variables is not None:
            self.variables.setdefault(storage, []).append(runs)

    def let_go(self, storage: Storage) -> None:
        """A variable holds it no longer."""
        if self.variables is not None and (runs := self.variables.get(storage)):
            runs.pop()

    def done(self, op: Op) -> None:
        """The last node that holds a checkpointed block releases it together with its own variables."""
        if self._held_by is not None and op is self._held_by[0]:
            self.ledger.release(self._held_by[1])
            self._held_by = None
