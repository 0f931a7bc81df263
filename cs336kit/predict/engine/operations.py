"""The forward pass of a model as one list of operations, from which every other number of the course is computed.

An operation is what torch's autograd sees as one node: its inputs, its output, what it saves for the backward pass, and
what its backward pass returns for each input. A repeated block is in the list once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from cs336kit.predict.layouts import ALONE, Layout
from cs336kit.predict.precision import ELEMENT_BYTES, PrecisionPolicy

#: Storages with these names hold integers that no gradient flows through; the second lie in the host's memory.
INDICES, HOST_INDICES = "indices", "indices on the host"


class Storage:
    """Memory that is allocated and freed as a whole, however many tensors are views of it."""

    __slots__ = ("bytes", "leaf", "name")

    def __init__(self, name: str, bytes: int, leaf: bool = False):
        self.name = name
        self.bytes = bytes
        #: a parameter, or data that the caller holds: alive before and after the pass
        self.leaf = leaf

    def __repr__(self) -> str:
        return f"Storage({self.name!r}, {self.bytes:,} bytes)"


class Tensor:
    """A shape and an element type over a storage. Gradients of tensors with the same `source` are added up."""

    __slots__ = ("dtype", "elements", "needs_gradient", "shape", "source", "storage")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        storage: Storage,
        needs_gradient: bool,
        source: object = None,
        elements: int | None = None,
    ):
        self.shape = shape
        self.elements = prod(shape) if elements is None else elements
        self.dtype = dtype
        self.storage = storage
        self.needs_gradient = needs_gradient
        self.source = storage if source is None else source

    @property
    def bytes(self) -> int:
        """Bytes of its elements; a partial view has fewer than its storage."""
        return self.elements * ELEMENT_BYTES[self.dtype]

    def __repr__(self) -> str:
        return f"Tensor({' × '.join(map(str, self.shape))}, {self.dtype}, {self.storage.name!r})"


@dataclass(slots=True, eq=False)
class Gradient:
    """What the backward pass of an operation returns for one of its inputs."""

    #: the input
    of: Tensor
    #: bytes that the operation allocates for it; None: it passes on the incoming gradient itself, or a view of it
    bytes: int | None
    #: sizes in which the engine brings it to the input's shape and then to its type, each a new tensor
    then: tuple[int, ...] = ()
    #: FLOPs of the matrix product that computes it
    flops: int = 0


class Collective(NamedTuple):
    """What an operation sends: a collective among `ranks` ranks `stride` apart, inside a block of `span` ranks."""

    #: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ring" or "send"
    kind: str
    #: the axis of the layout: "tp", "data", "pp", "ep" or "cp"
    axis: str
    ranks: int
    stride: int
    span: int
    #: bytes that each rank sends with a ring algorithm
    bytes: int
    #: "forward", "backward", or "step" for what happens once, however many micro-batches there are
    when: str = "forward"
    #: how many of the rows belong to one token, and are equal or to be added up where they meet
    alike: int = 1


@dataclass(slots=True, eq=False)
class Op:
    """One operation: what it reads, writes, saves and computes, forward and backward."""

    #: its place in the model, such as "block/attention/query"
    place: str
    #: what it does, such as "linear" or "softmax"
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    #: storages that it allocates: its output, and statistics that it saves
    allocates: tuple[Storage, ...]
    #: storages that its backward pass needs, parameters among them
    saves: tuple[Storage, ...]
    gradients: tuple[Gradient, ...]
    #: the part of the model: "embedding", "norms", "attention", "mlp", "head" or "loss"
    part: str
    #: bytes of each temporary tensor of its backward pass, besides the gradients that it returns; for a collective, of its
    #: forward pass, too
    workspace: tuple[int, ...] = ()
    #: bytes that it needs besides those under a dispatch mode, where torch otherwise works in place
    dispatch_workspace: int = 0
    #: bytes of each temporary tensor of its forward pass, none of which a dispatch mode sees
    forward_workspace: tuple[int, ...] = ()
    #: the storage over which its result is written, unless a dispatch mode is on
    over: Storage | None = None
    #: FLOPs of the forward pass by component; a multiply and an add are two
    flops: tuple[tuple[str, int], ...] = ()
    #: what it sends to other ranks, forward and backward
    collectives: tuple[Collective, ...] = ()

    @property
    def forward_flops(self) -> int:
        return sum(count for _, count in self.flops)

    @property
    def saves_after(self) -> bool:
        """Whether it saves something that it makes itself, and so has to run before that can be saved."""
        return any(storage in self.allocates for storage in self.saves)

    @property
    def forward_bytes(self) -> int:
        """Bytes that it must at least read and write, each tensor once; a view moves nothing."""
        if self.kind == "write":  # the new positions are read, and written in place
            return 2 * self.inputs[1].bytes
        if not self.allocates or self.kind == "empty":
            return 0
        written = sum(storage.bytes for storage in self.allocates)
        # A look-up reads as many rows as it writes, not the whole table.
        return 2 * written if self.kind in ("embedding", "index") else written + sum(t.bytes for t in self.inputs)


@dataclass(slots=True, eq=False)
class Free:
    """The caller releases these tensors here: a variable goes out of scope or is assigned anew."""

    tensors: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class Hold:
    """The caller holds a second result of the operation before this one."""

    storage: Storage


@dataclass(slots=True, eq=False)
class Mark:
    """A place at which a timeline shows the live bytes."""

    name: str


@dataclass(slots=True, eq=False)
class EndOfCache:
    """Autocast ends: its cached copies of the parameters are freed, (copy, how often repetition makes it) each."""

    copies: tuple[tuple[Storage, int], ...]


@dataclass(slots=True, eq=False)
class Repeat:
    """The same items `count` times, each run continuing from the one before."""

    name: str
    count: int
    items: "tuple[Item, ...]"
    #: a checkpointed block: only its input is saved, and the backward pass runs the items again
    checkpoint: Storage | None = None


Item = Op | Free | Hold | Mark | EndOfCache | Repeat


@dataclass(slots=True, eq=False)
class Leaf:
    """A parameter: its component, its shape and type, and how often it exists."""

    component: str
    tensor: Tensor
    count: int
    #: "start", "block" or "end" of the model
    place: str


class Shares(NamedTuple):
    """Which parameters of a block are used by several ranks of tp, each only in part."""

    #: ranks that hold the same key/value head
    of_a_head: int
    #: whether the norms of queries and keys are those of one head, which all ranks have
    head_norms: bool
    #: whether its MLP is a mixture of experts
    experts: bool


class Group(NamedTuple):
    """Parameters whose ranks communicate together: those of a block, or those outside the blocks."""

    leaves: tuple[Leaf, ...]
    #: how often the block exists; 0 outside the blocks, where gathered parameters stay from the forward to the backward pass
    repeated: int
    #: tables of which another pipeline stage holds a copy, so that their gradients are added up
    also: tuple[Tensor, ...]
    #: who else uses them, in a block
    shares: "Shares | None" = None


@dataclass(frozen=True, eq=False)
class Program:
    """The operations of one forward pass in order, and the parameters that they read."""

    items: tuple[Item, ...]
    leaves: tuple[Leaf, ...]
    #: keys and values in a cache: (shape, how often) each
    cached: tuple[tuple[tuple[int, ...], int], ...]
    #: element types
    policy: PrecisionPolicy
    #: output of the pass: the loss, or the logits
    output: Tensor
    #: the layout; the program is that of one rank of the `stage`
    layout: Layout = ALONE
    stage: int = 0
    groups: tuple[Group, ...] = ()
    #: whether torch's optimizers work on all tensors at once by default on the device
    foreach: bool = False

    def operations(self) -> Iterator[tuple[Op, int]]:
        """Every operation in order with the number of times that it runs."""
        yield from operations(self.items)

    def __repr__(self) -> str:
        ops = list(self.operations())
        return f"Program({len(ops)} operations, {sum(count for _, count in ops):,} when repeated)"


def operations(items: Sequence[Item], count: int = 1) -> Iterator[tuple[Op, int]]:
    """Every operation among the items, in order, with the number of times that it runs."""
    for item in items:
        if isinstance(item, Op):
            yield item, count
        elif isinstance(item, Repeat):
            yield from operations(item.items, count * item.count)


def blocks(items: Sequence[Item], count: int = 1) -> Iterator[tuple[Repeat, int]]:
    """Every kind of block in order, with the number of times that it runs, even inside a pattern that repeats."""
    for item in items:
        if isinstance(item, Repeat):
            times = count * item.count
            yield from [(item, times)] if item.name == "block" else blocks(item.items, times)


def shapes(leaves: Iterable[Leaf]) -> list[tuple[int, ...]]:
    """The shape of every parameter tensor, as often as it exists."""
    return [leaf.tensor.shape for leaf in leaves for _ in range(leaf.count)]
