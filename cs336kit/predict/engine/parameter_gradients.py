"""What becomes of parameters' gradients in a walk: their type, their sum over micro-batches, and what a rank keeps of them."""

from collections import Counter

from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import Program, Storage, Tensor
from cs336kit.predict.engine.states import held_elements
from cs336kit.predict.precision import ELEMENT_BYTES


class ParameterGradients:
    """Gradients as they come, and where ranks shard them (ZeRO 2 and 3) the shards: a block's gradients are reduce-scattered when
    its backward pass ends, and those of the tables and the head at the end.

    A `ledger` that starts with gradients has those of earlier passes of the same step (gradient accumulation): a parameter's new
    gradient is added to the old one and freed. Replicas of shards (HSDP) hold what they have all-reduced to the end of the
    backward pass. Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _all_reduce_state.
    """

    def __init__(self, program: Program, ledger: Ledger):
        self.ledger, self.layout = ledger, program.layout
        #: whether a rank keeps only a shard of each gradient
        self.divided = self.layout.zero_stage >= 2
        #: whether replicas hold their new shards beside the sums
        self.held_back = self.layout.zero_stage == 3 and self.layout.dp > 1 and ledger.gradients > 0
        self.size = ELEMENT_BYTES[program.policy.gradients]
        self.weight_size = ELEMENT_BYTES[program.policy.weights]
        #: with accumulation: gradients still to come for a parameter, before their sum is added to the old one
        self.to_come = _uses(program) if ledger.gradients else None
        #: what this rank keeps of the gradients so far
        self.shares = 0
        #: gradients of the tables, the final norm and the head, which are reduced when the backward pass ends
        self._outside_blocks = self._outside_shares = 0
        #: gradients and shares when the backward pass of the block began, while it runs
        self._before: tuple[int, int] | None = None

    def first(self, tensor: Tensor, storage: Storage, moment: str, place: str) -> Storage:
        """The first gradient of a parameter, in the type in which gradients are accumulated."""
        if self.size != self.weight_size:
            size = storage.bytes // self.weight_size * self.size
            storage = self.ledger.replace(storage, size, moment, place)
        share = self.ledger.rounded(held_elements(self.layout, tensor, 2) * self.size)
        self.ledger.gradients += self.ledger.size(storage)
        self.shares += share
        if self._before is None:
            self._outside_blocks += self.ledger.size(storage)
            self._outside_shares += share
        return storage

    def come(self, source: object, storage: Storage) -> None:
        """After a parameter's last gradient in this pass, their sum is added to the old one in place and freed."""
        if self.to_come is not None:
            self.to_come[source] -= 1
            if not self.to_come[source] and not self.divided:
                self.ledger.gradients -= self.ledger.size(storage)
                self.ledger.drop(storage)

    def enter(self) -> None:
        """The backward pass of a block begins."""
        self._before = self.ledger.gradients, self.shares

    def leave(self) -> None:
        """It ends."""
        assert self._before is not None
        gradients, shares = self._before
        self._before = None
        self._scatter(self.ledger.gradients - gradients, self.shares - shares)

    def end(self) -> None:
        """The backward pass has ended."""
        self._scatter(self._outside_blocks, self._outside_shares)
        if self.held_back:
            self.ledger.live -= self.shares
            self.ledger.gradients -= self.shares

    def _scatter(self, gradients: int, share: int) -> None:
        """Of these bytes of gradients, each rank keeps its shard, or adds it to the shard that it has."""
        if self.divided:
            gone = gradients - (share if self.to_come is None or self.held_back else 0)
            self.ledger.live -= gone
            self.ledger.gradients -= gone


def _uses(program: Program) -> dict[object, int]:
    """Source of each tensor → how many operations give it a gradient, those of a repeated part once."""
    return Counter(gradient.of.source for op, _ in program.operations() for gradient in op.gradients)
