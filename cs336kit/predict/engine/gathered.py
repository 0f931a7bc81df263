"""What a rank holds temporarily where parameters are sharded (ZeRO 3): the rules of torch's fully_shard.

A group of parameters is a block, or everything outside the blocks. Before its forward pass it is gathered into a
buffer and copied to tensors of its own. The buffer stays until the next group has been gathered and copied, the tensors until
the group's forward pass ends; those outside the blocks stay to the end of the backward pass. There, while a block runs, the
next one is gathered into its buffer. A block's whole gradients are copied to the input of a reduce-scatter, which stays
until the next block's gradients exist. Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cs336kit.predict.engine.operations import Leaf, Program, Repeat, blocks
from cs336kit.predict.engine.states import whole_bytes, whole_elements
from cs336kit.predict.precision import ELEMENT_BYTES

#: The moments when parameters are copied from the buffer that they arrived in, and whole gradients to the one they leave from.
GATHERING, REDUCING = "all-gather", "reduce-scatter"


class Beside(NamedTuple):
    """Bytes besides what a rank always holds: gathered parameters with their buffers, and the input of a reduce-scatter."""

    gathered: int = 0
    reduced: int = 0


class _Group(NamedTuple):
    """Bytes of a gathered group: its tensors, its buffer, and its gradients as the input of a reduce-scatter."""

    tensors: int
    buffer: int
    reduced: int


_NOTHING = _Group(0, 0, 0)


class Gathered:
    """Additional bytes alive in each part of both passes. `rounded`: the size that an allocator makes of a number of bytes."""

    def __init__(self, program: Program, rounded: Callable[[int], int]):
        self.program, self.rounded = program, rounded
        self.outside = self._group([(leaf.count, leaf) for leaf in program.leaves if leaf.place != "block"])
        kinds = (group for group in program.groups if group.repeated)
        #: the kinds of blocks in order, and the place of each
        self.order = [self._group([(leaf.count // group.repeated, leaf) for leaf in group.leaves]) for group in kinds]
        self.place = {block: place for place, (block, _) in enumerate(blocks(program.items))}

    def _group(self, leaves: Iterable[tuple[int, Leaf]]) -> _Group:
        policy, rounded = self.program.policy, self.rounded
        tensors, buffer, reduced = 0, 0, 0
        for count, leaf in leaves:
            size = whole_bytes(self.program, leaf)
            tensors += count * rounded(size)
            buffer += count * size
            if leaf.tensor.needs_gradient:
                reduced += count * ELEMENT_BYTES[policy.gradients] * whole_elements(self.program, leaf)
        return _Group(tensors, rounded(buffer), rounded(reduced))

    # -- forward -----------------------------------------------------------------------------------------------------

    @property
    def start(self) -> Beside:
        """Before the blocks."""
        return Beside(self.outside.tensors + self.outside.buffer)

    def entering(self, block: Repeat, run: int) -> Beside:
        """A block is copied from its buffer before the buffer of the group before it is freed."""
        place = self.place[block]
        before = self.order[place] if run else self.order[place - 1] if place else self.outside
        own = self.order[place]
        return Beside(self.outside.tensors + before.buffer + own.buffer + own.tensors)

    def forward(self, block: Repeat) -> Beside:
        own = self.order[self.place[block]]
        return Beside(self.outside.tensors + own.tensors + own.buffer)

    def behind(self, block: Repeat) -> Beside:
        """Between a block and the next group, or the head."""
        return Beside(self.outside.tensors + self.order[self.place[block]].buffer)

    # -- loss and backward -------------------------------------------------------------------------------------------

    @property
    def loss(self) -> Beside:
        return Beside(self.outside.tensors)

    @property
    def head(self) -> Beside:
        """Backward: the last block is being gathered."""
        return Beside(self.outside.tensors + self.order[-1].buffer)

    def backward(self, block: Repeat, run: int) -> Beside:
        """While the backward pass of a block runs; run 0 is the last of these blocks."""
        own, next_one, before = self._around(block, run)
        return Beside(self.outside.tensors + own.tensors + next_one.buffer, before.reduced)

    def entering_backward(self, block: Repeat, run: int) -> Beside:
        """A block is copied from its buffer, and then the next one is gathered."""
        own, _, before = self._around(block, run)
        return Beside(self.outside.tensors + own.tensors + own.buffer, before.reduced)

    def reducing(self, block: Repeat, run: int) -> Beside:
        """At the end of a block's backward pass, when its whole gradients still exist."""
        own, next_one, _ = self._around(block, run)
        return Beside(self.outside.tensors + next_one.buffer, own.reduced)

    def at(self, moment: str, block: Repeat, run: int) -> Beside:
        """At one of the moments of a block's backward pass."""
        if moment == GATHERING:
            return self.entering_backward(block, run)
        return self.reducing(block, run) if moment == REDUCING else self.backward(block, run)

    def _around(self, block: Repeat, run: int) -> tuple[_Group, _Group, _Group]:
        """A block, the one whose backward pass comes next, and the one whose backward pass came before."""
        place = self.place[block]
        own = self.order[place]
        next_one = own if run < block.count - 1 else self.order[place - 1] if place else _NOTHING
        before = own if run else self.order[place + 1] if place + 1 < len(self.order) else _NOTHING
        return own, next_one, before

    @property
    def embedding(self) -> Beside:
        """After the blocks."""
        return Beside(self.outside.tensors, self.order[0].reduced)

    @property
    def end(self) -> Beside:
        """The parameters outside the blocks are freed, but their whole gradients still exist."""
        return Beside(0, self.outside.reduced)
