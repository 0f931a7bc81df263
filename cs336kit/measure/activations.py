"""The bytes that a forward pass keeps for its backward pass, tensor by tensor."""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from cs336kit.predict import Breakdown
from cs336kit.predict._common.grid import as_html, as_text


@dataclass(frozen=True)
class SavedTensor:
    """One storage that the graph holds: what saved it first, in which module, its shape there, and its bytes."""

    operation: str
    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    #: how many times operations saved it; its bytes exist once
    saves: int
    #: "activation", or why its bytes are not counted: "parameter", "buffer", "indices" (token ids, targets), "left out"
    role: str


class SavedActivations(Breakdown):
    """Bytes kept for the backward pass by the operation that saved them; `.tensors` lists every storage."""

    __slots__ = ("tensors",)

    def __init__(self, tensors):
        parts = {}
        for tensor in tensors:
            if tensor.role == "activation":
                parts[tensor.operation] = parts.get(tensor.operation, 0) + tensor.bytes
        super().__init__(parts, unit="bytes")
        object.__setattr__(self, "tensors", tuple(tensors))

    def __reduce__(self):
        return SavedActivations, (self.tensors,)

    def table(self, *, counted_only: bool = True) -> "SavedTable":
        """Every storage in the order of saving; with `counted_only=False` also parameters, buffers and token ids."""
        return SavedTable([t for t in self.tensors if t.role == "activation" or not counted_only])


class SavedTable:
    """A list of saved tensors, shown as text and HTML."""

    def __init__(self, tensors):
        self.tensors = tensors

    def _rows(self):
        yield "operation", "module", "shape", "dtype", "bytes", "role"
        for t in self.tensors:
            operation = t.operation if t.saves == 1 else f"{t.operation} ({t.saves} saves)"
            shape = " × ".join(map(str, t.shape)) or "scalar"
            yield operation, t.module, shape, str(t.dtype).removeprefix("torch."), f"{t.bytes:,}", t.role

    def __repr__(self):
        return as_text(list(self._rows()), "<<<<><", gap=2)

    def _repr_html_(self):
        head, *body = self._rows()
        return as_html(head, body, "<<<<><")


class _Handle:
    """What the graph keeps in place of a saved tensor. While it is alive, so are the tensor's bytes."""

    __slots__ = ("__weakref__", "module", "operation", "tensor")

    def __init__(self, tensor, operation, module):
        self.tensor, self.operation, self.module = tensor, operation, module


class _Watch(TorchFunctionMode):
    """Knows, at any moment of a forward pass, the running operation and module, and every parameter and buffer met."""

    def __init__(self):
        super().__init__()
        self.operations, self.modules, self.saved = [], [], []
        self.names, self.roles = {}, {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        for value in args:
            if isinstance(value, torch.nn.Parameter):
                self.own(value, "parameter")
        self.operations.append(getattr(function, "__name__", "operation").strip("_"))
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.operations.pop()

    def own(self, tensor, role):
        # The storage is held: a module may convert its parameters while it is watched, and free the old ones.
        self.roles[_key(tensor)] = role, tensor.untyped_storage()

    def enter(self, module, args):
        if not self.modules:
            self.names.update({id(child): name for name, child in module.named_modules()})
            for buffer in module.buffers():
                self.own(buffer, "buffer")
            for parameter in module.parameters():
                self.own(parameter, "parameter")
        self.modules.append(self.names.get(id(module), type(module).__name__))

    def leave(self, module, args, output):
        self.modules.pop()

    def pack(self, tensor):
        operation = self.operations[-1] if self.operations else _function_outside_torch()
        # Detached: an operation's own output would lead back to the graph that holds the handle, and never be freed.
        handle = _Handle(tensor.detach(), operation, self.modules[-1] if self.modules else "")
        self.saved.append(weakref.ref(handle))
        return handle


def _key(tensor):
    # Addresses are reused, and are 0 on meta and fake tensors; the storage object itself is neither.
    return tensor.untyped_storage()._cdata


def _function_outside_torch():
    """Name what saves a tensor without calling a torch function: checkpointing, or an autograd.Function."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("utils/checkpoint.py"):
            return "checkpoint"
        frame = frame.f_back
    return "autograd.Function"


def _requires_grad(output):
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return any(_requires_grad(value) for value in values)


def saved_activation_bytes(function: Callable[[], torch.Tensor], *, without=()) -> SavedActivations:
    """Run `function`, which returns a loss or an output, and count the bytes kept for its backward pass.

    Counted once per storage, whole, however many operations saved it or views of it, and only if it is still held when
    `function` returns. Not counted: parameters and buffers of the modules that run, integer tensors (token ids,
    targets, routing), and the tensors or modules given in `without`. Works on real, fake and meta tensors; the fake
    ones of FakeTensorMode give the real numbers for models that no machine holds.
    Left out: what the C++ kernels hold outside autograd, the output itself, allocator rounding.
    Errors: TypeError if `function` cannot be called, ValueError if its result does not require a gradient.
    """
    if not callable(function) or isinstance(function, torch.Tensor):
        raise TypeError(
            f"saved_activation_bytes takes a function that computes the loss, not {type(function).__name__}: tensors are "
            "watched while they are saved. Write saved_activation_bytes(lambda: model.loss(tokens))"
        )
    watch = _Watch()
    before = register_module_forward_pre_hook(watch.enter)
    after = register_module_forward_hook(watch.leave, always_call=True)
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda handle: handle.tensor), watch:
            output = function()
    finally:
        before.remove()
        after.remove()
    if not _requires_grad(output):
        raise ValueError(
            "the function returned nothing that requires a gradient, so nothing is kept: return the loss, "
            "and call neither backward() nor no_grad() inside"
        )
    for owner in without if isinstance(without, (list, tuple)) else (without,):
        for tensor in [owner] if isinstance(owner, torch.Tensor) else [*owner.parameters(), *owner.buffers()]:
            watch.own(tensor, "left out")
    by_storage = {}
    for handle in (reference() for reference in watch.saved):
        if handle is not None:
            by_storage.setdefault(_key(handle.tensor), []).append(handle)
    tensors = []
    for key, handles in by_storage.items():
        first = handles[0]
        role, _ = watch.roles.get(key, ("activation", None))
        if role == "activation" and first.tensor.dtype in (torch.int64, torch.int32):
            role = "indices"
        size = first.tensor.untyped_storage().nbytes()
        tensors.append(
            SavedTensor(
                first.operation, first.module, tuple(first.tensor.shape), first.tensor.dtype, size, len(handles), role
            )
        )
    del output
    return SavedActivations(tensors)
