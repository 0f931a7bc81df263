"""A training step, request by request: what CUDA's caching allocator would hand out, and reserve from the driver."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Unpack

from cs336kit.predict.allocator import LT_WORKSPACE_BYTES, WORKSPACE_BYTES, Block, CachingAllocator
from cs336kit.predict.checks import boolean, positive_int, shown
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoder.step import StepOptions
from cs336kit.predict.devices import device as device_of
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import HOST_INDICES, Gradient, Op, Program, Storage
from cs336kit.predict.engine.states import state_requests, temporary_requests
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.layouts import as_layout
from cs336kit.predict.optimizers import optimizer_spec
from cs336kit.predict.precision import ELEMENT_BYTES
from cs336kit.predict.training import both_passes
from cs336kit.predict.transformer import TransformerConfig

NOTE = (
    "computed from torch's sources: rounding, segments, cuBLAS workspaces and what kernels need for a moment; measured on an "
    "H100 and an H200 with torch 2.11 in 192 steps, 120 of them of random decoders: requested to the byte, allocated within "
    "0.4 %, reserved exact in 159, within 0.7 % in 188 and 10 % at most; left out: where the driver puts a segment, partial "
    "sums of columns, the CUDA context, cuDNN, NCCL, targets that are not the token ids"
)

#: Operations that cuBLAS computes.
PRODUCTS = frozenset({"linear", "matmul"})


@dataclass(frozen=True)
class StepAllocation:
    """Bytes at the peak of a training step: of tensors, of the blocks that they are rounded up to, and reserved from the driver.

    `allocated` is what `torch.cuda.max_memory_allocated` reports, `reserved` is `torch.cuda.max_memory_reserved`. Part of all
    three are the `workspaces`, and the `data`: token ids, and the model's tables of rotary positions.
    """

    requested: int
    allocated: int
    reserved: int
    workspaces: int
    data: int
    note: str = field(default=NOTE, repr=False)


class Replay(Ledger):
    """The ledger of an unrolled program that requests every storage from an allocator and returns it."""

    def __init__(self, allocator: CachingAllocator):
        super().__init__()
        self.allocator, self.blocks = allocator, dict[Storage, Block]()

    def hold(self, storage: Storage) -> None:
        if storage not in self.blocks and storage.bytes and storage.name != HOST_INDICES:
            self.blocks[storage] = self.allocator.allocate(storage.bytes)
        super().hold(storage)

    def drop(self, storage: Storage) -> None:
        super().drop(storage)
        if storage not in self.holds and storage in self.blocks:
            self.allocator.release(self.blocks.pop(storage))

    def write_over(self, old: Storage, new: Storage) -> None:
        """From here on, the block of a storage is that of another one."""
        self.blocks[new] = self.blocks.pop(old)

    def see(self, moment: str, place: str, extra: tuple[int, ...] = ()) -> None:
        super().see(moment, place, extra)
        for block in [self.allocator.allocate(size) for size in extra if size][::-1]:
            self.allocator.release(block)


class Workspaces:
    """What cuBLAS (`size` bytes) and cuBLASLt (`lt_size`) keep for each thread, from its first product on; `total`: so far."""

    def __init__(self, allocator: CachingAllocator, size: int, lt_size: int):
        self.allocator, self.size, self.lt_size = allocator, size, lt_size
        self.total, self._kept = 0, set[tuple[str, int]]()

    def need(self, thread: str, *, biased: bool = False) -> None:
        """A thread multiplies matrices. cuBLASLt is called only for a product to which a bias is added (`biased`)."""
        for size in (self.size, self.lt_size) if biased else (self.size,):
            if (thread, size) not in self._kept:
                self._kept.add((thread, size))
                self.allocator.allocate(size)
                self.total += size


class Replayed(Walk):
    """A walk that requests workspaces where torch does.

    That of the backward pass is first requested at the head, and takes a piece of a large free block, such as one of the
    logits: those of the next step no longer fit there. Requested before the pass, it would have a segment of its own.
    """

    def __init__(self, program: Program, replay: Replay, workspaces: Workspaces):
        super().__init__(program, sums_in_place=True, ledger=replay)
        self.replay, self.workspaces = replay, workspaces

    def _run(self, op: Op) -> None:
        if op.over is not None:
            self.replay.write_over(op.over, op.outputs[0].storage)
        super()._run(op)
        if op.kind in PRODUCTS:
            # What is checkpointed is recomputed by the thread of the backward pass.
            thread = "backward" if self.moment == "recomputation" else "forward"
            self.workspaces.need(thread, biased=op.kind == "linear" and len(op.inputs) > 2)

    def _returned(self, op: Op, gradient: Gradient, incoming: Sequence[Storage]) -> Storage:
        storage = super()._returned(op, gradient, incoming)
        if op.kind in PRODUCTS and gradient.bytes is not None:
            self.workspaces.need("backward")
        return storage


def step_allocation(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    optimizer: str = "adamw",
    fused: bool = False,
    capability: int = 9,
    **options: Unpack[StepOptions],
) -> StepAllocation:
    """Requested, allocated and reserved bytes of two training steps on one CUDA device, by replaying every request.

    The optimizer is torch's foreach implementation, or `fused`; old gradients are freed between the steps. `capability`:
    the device's major compute capability, on which the size of cuBLAS's workspaces depends. `options` are those of
    `predict.program`. `note` says how near it came to what was measured, and what is left out. Of the
    three, `reserved` is the least certain: whether a large tensor finds a free block can depend on where a small one lies.
    Errors: ValueError for impossible sizes, and for a layout of several ranks or another device, which are not replayed.
    """
    if as_layout(options.get("layout")).count > 1:
        raise ValueError(
            f"layout={options['layout']}: the requests of one device alone are replayed here; leave it out"
        )
    if device_of(options.get("device", "cuda")).name != "cuda":
        raise ValueError(f"device={shown(options['device'])}: the allocator is that of CUDA; leave it out")
    positive_int("capability", capability)
    optimizer_spec(optimizer)
    boolean("fused", fused)
    how: StepOptions = {"device": "cuda", **options, "unrolled": True}
    written = program(config, batch=batch, sequence=sequence, **how)
    allocator = CachingAllocator()
    for leaf in written.leaves:
        for _ in range(leaf.count):
            allocator.allocate(leaf.tensor.storage.bytes)
    data = _data(config, written, batch * sequence)
    for size in data:
        allocator.allocate(size)
    workspaces = Workspaces(allocator, WORKSPACE_BYTES.get(capability, WORKSPACE_BYTES[None]), LT_WORKSPACE_BYTES)
    kind, implementation = written.policy, "fused" if fused else "foreach"
    if kind.master_weights:
        for leaf in written.leaves:
            for _ in range(leaf.count if leaf.tensor.needs_gradient else 0):
                allocator.allocate(leaf.tensor.elements * ELEMENT_BYTES[kind.master_weights])
    for step in range(2):
        replay = Replay(allocator)
        walk = both_passes(Replayed(written, replay, workspaces), written)
        if step == 0:
            for size in state_requests(written, optimizer.lower(), implementation):
                allocator.allocate(size)
        temporary = temporary_requests(written, optimizer.lower(), implementation)
        for block in [allocator.allocate(size) for size in temporary][::-1]:  # a list is freed from its end
            allocator.release(block)
        # Gradients are freed in the order of their parameters, and the loss last.
        gradients = [walk.waiting[leaf.tensor.source] for leaf in written.leaves if leaf.tensor.source in walk.waiting]
        for storage in dict.fromkeys([*gradients, *replay.blocks]):
            allocator.release(replay.blocks[storage])
    most = allocator.most_requested, allocator.most_allocated, allocator.reserved
    return StepAllocation(*most, workspaces.total, sum(data))


def _data(config: TransformerConfig, written: Program, tokens: int) -> list[int]:
    """Bytes of what is no parameter and lies on the device all the time: cosines and sines of all positions, and token ids."""
    row = config.rotary_width * ELEMENT_BYTES[written.policy.weights]
    tables = [config.context * row] * 2 if config.positions == "rope" else []
    return [*tables, tokens * ELEMENT_BYTES["int64"]]
