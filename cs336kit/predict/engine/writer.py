"""Writes a program: items in order, repetition, parameters, and operations whose gradients follow from shapes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod

from cs336kit.predict.devices import DEVICES, Device
from cs336kit.predict.engine.operations import (
    ELEMENT_BYTES,
    EndOfCache,
    Free,
    Gradient,
    Group,
    Hold,
    Item,
    Leaf,
    Mark,
    Op,
    Program,
    Repeat,
    Storage,
    Tensor,
    Wire,
    operations,
)
from cs336kit.predict.layouts import ALONE, Layout
from cs336kit.predict.packed import packed_bytes
from cs336kit.predict.precision import PrecisionPolicy


class Writer:
    """Collects the items of a program. Tensors that it returns are held, as a variable holds them, until `free`.

    `device` says what its operations save. `train=False` writes a pass without autograd: nothing is saved. Parameters
    of the `frozen` components are not trained; with `lora_rank`, only adapters of this rank beside the `lora_targets` are.
    """

    def __init__(
        self,
        policy: PrecisionPolicy,
        *,
        device: Device = DEVICES["cpu"],
        train: bool = True,
        frozen: Iterable[str] = (),
        lora_rank: int | None = None,
        lora_targets: Iterable[str] = (),
        base: str | None = None,
        layout: Layout = ALONE,
        stage: int = 0,
    ):
        self.policy, self.device, self.train = policy, device, train
        self.layout, self.stage = layout, stage
        #: how frozen matrices of the blocks are quantized; None: stored in the policy's type
        self.base = base
        self.frozen, self.lora_rank, self.lora_targets = frozenset(frozen), lora_rank, frozenset(lora_targets)
        #: "start", "block" or "end", the place of the parameters
        self.section = "start"
        self.cached: list[tuple[tuple[int, ...], int]] = []
        self.items: list[Item] = []
        self.leaves: list[Leaf] = []
        self.groups: list[Group] = []
        self.count = 1
        self.prefix = ""
        #: experts whose matrices are in one tensor; 0 outside of such experts
        self.stacked = 0
        #: the part of the model that the operations belong to
        self.part = "embedding"
        #: autocast's cache: id of a parameter → (its copy, how often it exists)
        self.cache: dict[int, tuple[Tensor, int]] = {}

    # -- structure ---------------------------------------------------------------------------------------------------

    def within(self, name: str, *, part: str = "") -> "_Within":
        """Names of the operations inside begin with `name/` if given, and they belong to `part` if given."""
        return _Within(self, name, part)

    @contextmanager
    def repeat(self, name: str, count: int, *, checkpoint: Tensor | None = None) -> Iterator[None]:
        """The items written inside are repeated `count` times."""
        outside, self.items = self.items, []
        self.count *= count
        with self.within(name):
            yield
        self.count //= count
        body, self.items = self.items, outside
        # Torch keeps the input of a checkpointed block if something inside needs what the block would save.
        needed = self.train and any(op.keeps for op, _ in operations(body))
        kept = checkpoint.storage if checkpoint is not None and needed else None
        self.items.append(Repeat(name, count, tuple(body), kept))

    @contextmanager
    def aside(self, leaves: list[Leaf]) -> Iterator[None]:
        """Parameters that are written inside go into this list: their module has them in another place than it uses them."""
        outside, self.leaves = self.leaves, leaves
        yield
        self.leaves = outside

    def free(self, *tensors: Tensor, unless: Tensor | None = None) -> None:
        """The caller no longer holds these tensors; `unless`: one that is still held, if it is among them."""
        if unless is not None:
            tensors = tuple([tensor for tensor in tensors if tensor is not unless])
        if tensors:
            self.items.append(Free(tensors))

    def hold(self, tensor: Tensor) -> None:
        """The caller holds this second output of an operation too."""
        self.items.append(Hold(tensor.storage))

    def mark(self, name: str) -> None:
        """A timeline shows the bytes that are alive here."""
        self.items.append(Mark(name))

    def end_of_cache(self) -> None:
        """Autocast ends here."""
        if self.cache:
            self.items.append(EndOfCache(tuple((copy.storage, count) for copy, count in self.cache.values())))
            self.cache.clear()

    def cache_of(self, *tensors: Tensor, window: int | None) -> None:
        """A cache for generation holds these keys and values, with a sliding window only the last positions."""
        for tensor in tensors:
            B, K, T, h = tensor.shape
            self.cached.append(((B, K, min(T, window or T), h), self.count))

    def program(self, output: Tensor) -> Program:
        return Program(
            tuple(self.items), tuple(self.leaves), tuple(self.cached), self.policy, output, self.layout, self.stage,
            tuple(self.groups), self.device.foreach,
        )  # fmt: skip

    # -- tensors -----------------------------------------------------------------------------------------------------

    def parameter(self, component: str, *shape: int) -> Tensor:
        dtype = self.policy.weights
        if self.stacked:
            shape = (self.stacked, *shape)
        elements = prod(shape)
        packed = self.base is not None and self.packs(component, shape)
        size = (
            packed_bytes(elements, self.base or "", rows=elements // shape[-1])
            if packed
            else elements * ELEMENT_BYTES[dtype]
        )
        trained = self.train and self.trained(component)
        tensor = Tensor(shape, dtype, Storage(component, size, True), trained, None, elements)
        self.leaves.append(Leaf(component, tensor, self.count, self.section))
        return tensor

    def trained(self, component: str) -> bool:
        """Whether parameters of this component get gradients."""
        return component == "adapters" if self.lora_rank else component not in self.frozen

    def packs(self, component: str, shape: tuple[int, ...]) -> bool:
        """Whether this parameter is quantized: the frozen matrices of linear layers in blocks."""
        return self.base is not None and self.section == "block" and len(shape) > 1 and not self.trained(component)

    def data(self, name: str, shape: tuple[int, ...], dtype: str = "int64") -> Tensor:
        """Data that the caller holds all the time: token ids, tables of angles."""
        return Tensor(shape, dtype, Storage(name, prod(shape) * ELEMENT_BYTES[dtype], leaf=True), False)

    def view(self, tensor: Tensor, *shape: int) -> Tensor:
        """The same elements with another shape, without a copy in either direction."""
        return Tensor(shape, tensor.dtype, tensor.storage, tensor.needs_gradient, tensor.source)

    # -- one operation -----------------------------------------------------------------------------------------------

    def op(
        self,
        place: str,
        kind: str,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        # Given by name, but not keyword-only: Python looks up each missing keyword-only default by its name, in every call.
        dtype: str = "",
        name: str = "",
        keeps: tuple[Tensor, ...] = (),
        keeps_output: bool = False,
        statistics: tuple[Storage, ...] = (),
        passes: bool = False,
        scratch: tuple[int, ...] = (),
        watched: int = 0,
        passing: tuple[int, ...] = (),
        over: Storage | None = None,
        flops: tuple[tuple[str, int], ...] = (),
        gradient_flops: int = 0,
        alias: bool = False,
        wires: tuple[Wire, ...] = (),
    ) -> Tensor:
        """Append an operation whose gradients follow from the shapes, and return its output.

        A gradient has the output's type and, in an element-wise operation, the broadcast shape first; the engine then
        sums it to the input's shape and casts it to the input's type. `passes`: the incoming gradient is passed on as it
        is (sums). `alias`: the output is a view of the first input, but its gradient is not. `statistics`: what it allocates
        besides its output and saves.
        """
        dtype = dtype or inputs[0].dtype
        size = ELEMENT_BYTES[dtype]
        # Most operations are element-wise, and have the very shape of their input.
        elements = inputs[0].elements if inputs and shape is inputs[0].shape else prod(shape)
        output = inputs[0].storage if alias else Storage(name or place, elements * size)
        gradients: tuple[Gradient, ...] = ()
        kept: tuple[Storage, ...] = ()
        if self.train:
            first = None if passes else elements * size
            collected = []
            on_elements = kind in _ELEMENTWISE
            for tensor in inputs:
                if tensor.needs_gradient:
                    own = tensor.elements
                    if not on_elements:
                        collected.append(Gradient(tensor, own * ELEMENT_BYTES[tensor.dtype], (), gradient_flops))
                        continue
                    # An axis in front is summed even if it is of size 1.
                    summed = own != elements or len(tensor.shape) < len(shape)
                    then: tuple[int, ...] = (own * size,) if summed else ()
                    if tensor.dtype != dtype:
                        then += (own * ELEMENT_BYTES[tensor.dtype],)
                    collected.append(Gradient(tensor, first, then, gradient_flops))
            if collected:
                gradients = tuple(collected)
                if keeps:
                    kept = tuple([tensor.storage for tensor in keeps])
                if statistics:
                    kept += statistics
                if keeps_output:
                    kept += (output,)
        result = Tensor(shape, dtype, output, bool(gradients), object() if alias else None, elements)
        self.items.append(
            Op(
                self.prefix + place, kind, inputs, (result,), () if alias else (output, *statistics), kept, gradients,
                self.part, scratch, watched, passing, over, flops, wires,
            )
        )  # fmt: skip
        return result


class _Within:
    """The result of `Writer.within`: it sets the prefix and the part, and restores both."""

    __slots__ = ("before", "builder", "name", "part")

    def __init__(self, builder: Writer, name: str, part: str):
        self.builder, self.name, self.part = builder, name, part

    def __enter__(self) -> None:
        builder = self.builder
        self.before = builder.prefix, builder.part
        if self.name:
            builder.prefix = f"{builder.prefix}{self.name}/"
        if self.part:
            builder.part = self.part

    def __exit__(self, *exception: object) -> None:
        self.builder.prefix, self.builder.part = self.before


#: Element-wise operations, whose gradients have the output's shape before the engine sums them to the input's.
_ELEMENTWISE = frozenset({"add", "add in place", "mul", "div", "copy", "neg", "gelu", "silu", "view", "all-reduce"})
