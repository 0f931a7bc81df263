"""Where ranks shard parameters (ZeRO 3), a walk tells the ledger at the borders of blocks what is gathered besides."""

from cs336kit.predict.engine.gathered import GATHERING, REDUCING, Gathered
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import Op, Program, Repeat


class Gathering:
    """Where a walk is among the groups of parameters, by the rules of `Gathered`. With other layouts, nothing is gathered."""

    def __init__(self, program: Program, ledger: Ledger):
        self.ledger = ledger
        self.rules = Gathered(program, ledger.rounded) if program.layout.zero_stage == 3 else None
        #: whether the backward pass has not reached the head yet, at which the last block is gathered
        self.before_head = self.rules is not None
        if self.rules is not None:
            ledger.stand(self.rules.start)

    def of(self, block: Repeat) -> Gathered | None:
        """The rules, if these items are a block and its parameters are gathered."""
        return self.rules if block.name == "block" else None

    # -- forward -----------------------------------------------------------------------------------------------------

    def enter(self, block: Repeat) -> None:
        """Before the first run of a block."""
        if (rules := self.of(block)) is not None:
            self.ledger.stand(rules.entering(block, 0), GATHERING)

    def run(self, block: Repeat) -> None:
        """At the start of a run, which stands for all."""
        if (rules := self.of(block)) is not None:
            if block.count > 1:  # the state that every run but the first starts from
                self.ledger.stand(rules.entering(block, 1), GATHERING)
            self.ledger.stand(rules.forward(block))

    def leave(self, block: Repeat) -> None:
        """After the last run."""
        if (rules := self.of(block)) is not None:
            self.ledger.stand(rules.behind(block))

    def loss(self) -> None:
        """At the loss, forward and backward."""
        if self.rules is not None:
            self.ledger.stand(self.rules.loss)

    # -- backward ----------------------------------------------------------------------------------------------------

    def reach(self, op: Op) -> None:
        """Before the backward pass of an operation behind the blocks."""
        if self.rules is not None and op.part != "loss":
            self.before_head = False
            self.ledger.stand(self.rules.head)

    def run_backward(self, block: Repeat) -> None:
        """At the start of a run's backward pass."""
        if (rules := self.of(block)) is not None:
            self.before_head = False
            self.ledger.stand(rules.entering_backward(block, 0), GATHERING)
            self.ledger.stand(rules.backward(block, 0))

    def reduce(self, block: Repeat) -> None:
        """At the end of a run's backward pass."""
        if (rules := self.of(block)) is not None:
            self.ledger.stand(rules.reducing(block, 0), REDUCING)

    def leave_backward(self, block: Repeat) -> None:
        """After the last run's backward pass."""
        if self.rules is not None and self.of(block) is not None:
            self.ledger.stand(self.rules.embedding)

    def end(self) -> None:
        """When the backward pass has ended."""
        if self.rules is not None:
            self.ledger.stand(self.rules.end, REDUCING)
