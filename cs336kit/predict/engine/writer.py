"""Writes a program: items in order, repetition, parameters, and operations whose gradients follow from shapes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod

from cs336kit.predict.devices import DEVICES, Device
from cs336kit.predict.engine.operations import (
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
    operations,
)
from cs336kit.predict.layouts import ALONE, Layout
from cs336kit.predict.packed import packed_bytes
from cs336kit.predict.precision import ELEMENT_BYTES, PrecisionPolicy


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
        needed = self.train and any(op.saves for op, _ in operations(body))
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

    # -- one operation: a method for each rule of its gradients -------------------------------------------------------

    @property
    def last(self) -> Op:
        """The operation written last, to add what is particular to it: temporary tensors, collectives."""
        op = self.items[-1]
        assert isinstance(op, Op)
        return op

    def made(
        self, place: str, kind: str, shape: tuple[int, ...], dtype: str, *, of: tuple[Tensor, ...] = (), name: str = ""
    ) -> Tensor:
        """A tensor that autograd does not record, such as a mask or indices: nothing is saved, no gradient flows."""
        return self._written(place, kind, of, shape, dtype, name, (), ())

    def pointwise(
        self, place: str, kind: str, x: Tensor, *, dtype: str = "", saves: str = "", name: str = ""
    ) -> Tensor:
        """A function of each element, which keeps its "input", its "output" or nothing. The gradient is a new tensor like x."""
        gradients: tuple[Gradient, ...] = ()
        kept: tuple[Storage, ...] = ()
        if x.needs_gradient:
            gradients = (Gradient(x, x.bytes),)
            if saves == "input":
                kept = (x.storage,)
        y = self._written(place, kind, (x,), x.shape, dtype or x.dtype, name, gradients, kept)
        if gradients and saves == "output":
            self.last.saves = (y.storage,)
        return y

    def combined(
        self, place: str, kind: str, x: Tensor, y: Tensor, *, saves: tuple[Tensor, ...], name: str = ""
    ) -> Tensor:
        """A function of the elements of x and of y, which is repeated to x's shape. Each gradient is a new tensor of this shape,
        then summed to the factor's own and cast to its type.
        """
        shape, dtype = x.shape, wider(x, y)
        gradients = self._summed((x, y), shape, dtype, x.elements * ELEMENT_BYTES[dtype])
        kept = tuple([tensor.storage for tensor in saves]) if gradients else ()
        return self._written(place, kind, (x, y), shape, dtype, name, gradients, kept)

    def passed(
        self, place: str, kind: str, inputs: tuple[Tensor, ...], shape: tuple[int, ...], *, dtype: str = "", name: str = "",
        alias: bool = False,
    ) -> Tensor:  # fmt: skip
        """A sum or a copy: each gradient is the incoming one itself, then summed to the input's shape and cast to its type.

        `alias`: the output is written over the first input, or is a view of it.
        """
        dtype = dtype or inputs[0].dtype
        gradients = self._summed(inputs, shape, dtype, None)
        return self._written(place, kind, inputs, shape, dtype, name, gradients, (), inputs[0] if alias else None)

    def viewed(self, place: str, kind: str, inputs: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
        """A view of the first input. The gradient is no view: a copy, or zeros into which the incoming one is written."""
        return self._written(place, kind, inputs, shape, inputs[0].dtype, "", _as_inputs(inputs), (), inputs[0])

    def computed(
        self, place: str, kind: str, inputs: tuple[Tensor, ...], shape: tuple[int, ...], *, saves: tuple[Tensor, ...] = (),
        name: str = "",
    ) -> Tensor:  # fmt: skip
        """Any function, such as a mean or a choice of rows. Each gradient is a new tensor like its input."""
        gradients = _as_inputs(inputs)
        kept = tuple([tensor.storage for tensor in saves]) if gradients and saves else ()
        return self._written(place, kind, inputs, shape, inputs[0].dtype, name, gradients, kept)

    def with_statistics(
        self, place: str, kind: str, inputs: tuple[Tensor, ...], shape: tuple[int, ...], statistics: tuple[Storage, ...], *,
        saves: tuple[Tensor, ...] = (), name: str = "",
    ) -> Tensor:  # fmt: skip
        """The same of a function that allocates and saves statistics besides its output: of rows, a mask, or indices."""
        y = self.computed(place, kind, inputs, shape, saves=saves, name=name)
        op = self.last
        op.allocates += statistics
        if op.gradients:
            op.saves += statistics
        return y

    def product(
        self, place: str, kind: str, inputs: tuple[Tensor, ...], shape: tuple[int, ...], flops: int, *, component: str,
        saves: tuple[Tensor, ...], name: str = "",
    ) -> Tensor:  # fmt: skip
        """A matrix product. Each gradient is a product with as many FLOPs, and a new tensor like its input."""
        y = self.computed(place, kind, inputs, shape, saves=saves, name=name)
        op = self.last
        op.flops = ((component, flops),)
        for gradient in op.gradients:
            gradient.flops = flops
        return y

    def _summed(
        self, inputs: tuple[Tensor, ...], shape: tuple[int, ...], dtype: str, first: int | None
    ) -> tuple[Gradient, ...]:
        """Gradients that come with the output's shape and type, each in `first` bytes (None: the incoming one itself)."""
        gradients, size = [], ELEMENT_BYTES[dtype]
        for tensor in inputs:
            if tensor.needs_gradient:
                # An axis in front is summed even if it is of size 1.
                summed = len(tensor.shape) < len(shape) or tensor.elements != prod(shape)
                then: tuple[int, ...] = (tensor.elements * size,) if summed else ()
                if tensor.dtype != dtype:
                    then += (tensor.bytes,)
                gradients.append(Gradient(tensor, first, then))
        return tuple(gradients)

    def _written(
        self,
        place: str,
        kind: str,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        dtype: str,
        name: str,
        gradients: tuple[Gradient, ...],
        saves: tuple[Storage, ...],
        over: Tensor | None = None,
    ) -> Tensor:
        """Append an operation and return its output, a new tensor, or a view of `over`."""
        # Most operations are on elements, and have the very shape of their input.
        elements = inputs[0].elements if inputs and shape is inputs[0].shape else prod(shape)
        storage = Storage(name or place, elements * ELEMENT_BYTES[dtype]) if over is None else over.storage
        y = Tensor(shape, dtype, storage, bool(gradients), None if over is None else object(), elements)
        allocates = (storage,) if over is None else ()
        self.items.append(Op(self.prefix + place, kind, inputs, (y,), allocates, saves, gradients, self.part))
        return y


def wider(x: Tensor, y: Tensor) -> str:
    """The type of a result of both: the one with more bytes."""
    return x.dtype if ELEMENT_BYTES[x.dtype] >= ELEMENT_BYTES[y.dtype] else y.dtype


def _as_inputs(inputs: tuple[Tensor, ...]) -> tuple[Gradient, ...]:
    """A new tensor for each input that needs a gradient, as large as the input."""
    return tuple([Gradient(tensor, tensor.bytes) for tensor in inputs if tensor.needs_gradient])


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
