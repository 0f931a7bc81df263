"""How the instruments observe: which module and function runs, what autograd saves, which storages are alive."""

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cs336kit import _torch


@dataclass(eq=False)
class Frame:
    """One call of a module or, with an `operation`, of a torch function in its code."""

    module: str
    operation: str = ""
    #: the number of the first autograd node that the call may create, and the thread that counts it
    first: int = 0
    thread: int = 0
    #: a call inside the backward pass: checkpointing recomputes it
    again: bool = False
    #: the order in which calls begin
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def place(self) -> str:
        """The module's path below the outermost one: "blocks.0.attention"."""
        return self.module.partition(".")[2]


OUTSIDE = Frame("outside modules")


@dataclass(frozen=True)
class SavedTensor:
    """One storage that the graph holds: which operation saved it first, in which module, its shape there, its bytes."""

    operation: str
    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    #: how many times operations saved it; its bytes exist once
    saves: int
    #: "activation", or why its bytes are not counted: "parameter", "buffer", "indices" (token ids, targets), "left out"
    role: str


class _Handle:
    """Takes the place of a saved tensor in the graph: as long as it is alive, so are the tensor's bytes."""

    __slots__ = ("__weakref__", "frame", "tensor")

    def __init__(self, tensor: Tensor, frame: Frame):
        self.tensor, self.frame = tensor, frame


class Trace(TorchFunctionMode):
    """Tracks the module and the torch function that run, also in the backward pass, and what autograd saves in them.

    Autograd numbers its nodes in the order in which the forward pass creates them, so a node belongs to the innermost
    call that was running when it got its number.
    """

    def __init__(self, leaving: Callable[[Frame], None] = lambda frame: None):
        super().__init__()
        self._leaving = leaving
        self._stack: list[Frame] = []
        self._names: dict[nn.Module, str] = {}
        self._owner: dict[int | None, Frame] = {}
        self._thread = threading.get_ident()
        self._saved: list[weakref.ref] = []
        # The storage is held, because a module may convert its parameters meanwhile and free the old ones.
        self._roles: dict[int, tuple[str, torch.UntypedStorage]] = {}

    @contextmanager
    def watching(self, *, saved: bool = False) -> Iterator[None]:
        """Watch what runs inside; with `saved`, also what autograd saves."""
        hooks = _torch.module_hooks(self._enter_module, self._leave_module)
        pack = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda handle: handle.tensor)
        try:
            with self:
                if saved:
                    with pack:
                        yield
                else:
                    yield
        finally:
            for hook in hooks:
                hook.remove()

    def frame(self) -> Frame:
        """The call that runs now; in the backward pass, the one whose node runs, unless checkpointing recomputes a call."""
        top = self._stack[-1] if self._stack else OUTSIDE
        if not _torch.in_backward() or (top.again and top.module != OUTSIDE.module):
            return top
        return self._owner.get(_torch.running_node(), OUTSIDE)

    def own(self, tensors: Iterable[Tensor], role: str) -> None:
        """List the storages of these tensors, which exist anyway, under this role."""
        storages = (_torch.local(tensor).untyped_storage() for tensor in _torch.tensors(list(tensors)))
        self._roles.update({_torch.key_of(storage): (role, storage) for storage in storages})

    def saved(self) -> list[tuple[Frame, SavedTensor]]:
        """Every storage that the graph still holds, once, with the first call that saved it."""
        by_storage: dict[int, list[tuple[Frame, Tensor]]] = {}
        for handle in (reference() for reference in self._saved):
            if handle is not None:
                for tensor in map(_torch.local, _torch.tensors(handle.tensor)):
                    by_storage.setdefault(_torch.storage_key(tensor), []).append((handle.frame, tensor))
        found = []
        for key, saves in by_storage.items():
            frame, tensor = saves[0]
            indices = tensor.dtype in (torch.int64, torch.int32)
            role = self._roles[key][0] if key in self._roles else "indices" if indices else "activation"
            size = tensor.untyped_storage().nbytes()
            shape = tuple(tensor.shape)
            one = SavedTensor(frame.operation, frame.place, shape, tensor.dtype, size, len(saves), role)
            found.append((frame, one))
        return found

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if parameters := [t for t in _torch.tensors((*args, *kwargs.values())) if isinstance(t, nn.Parameter)]:
            self.own(parameters, "parameter")
        module = self._stack[-1].module if self._stack else OUTSIDE.module
        self._enter(module, getattr(function, "__name__", "operation").strip("_"))
        try:
            return function(*args, **kwargs)
        finally:
            self._leave()

    def _enter(self, module: str, operation: str = "") -> None:
        numbered = _torch.next_node(), threading.get_ident()
        self._stack.append(Frame(module, operation, *numbered, again=_torch.in_backward()))

    def _leave(self) -> None:
        frame = self._stack.pop()
        # On a GPU, checkpointing recomputes calls on another thread, which numbers its own nodes.
        if frame.thread == self._thread:
            for number in range(frame.first, _torch.next_node()):
                self._owner.setdefault(number, frame)
        self._leaving(frame)

    def _elsewhere(self) -> bool:
        """Whether an unrelated thread called this hook, as torch does; on a GPU, backward recomputes on a thread of its own."""
        return threading.get_ident() != self._thread and not _torch.in_backward()

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        if self._elsewhere():
            return
        if module not in self._names:
            above = f"{self._stack[-1].module}." if self._stack else ""
            for name, child in module.named_modules(prefix=above + type(module).__name__):
                self._names.setdefault(child, name)
        if not self._stack:
            self.own(module.buffers(), "buffer")
            self.own(module.parameters(), "parameter")
        self._enter(self._names[module])

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._elsewhere():
            self._leave()

    def _pack(self, tensor: Tensor) -> _Handle:
        frame = self._stack[-1] if self._stack else OUTSIDE
        if not frame.operation:
            frame = self._outside_torch(frame.module)
        # Detached: an operation's own output would refer to the graph that holds the handle, and never be freed.
        handle = _Handle(tensor.detach(), frame)
        self._saved.append(weakref.ref(handle))
        return handle

    def _outside_torch(self, module: str) -> Frame:
        """What saves a tensor without a torch function, and owns the newest node, unless its own code made another one."""
        made = Frame(module, _function_outside_torch())
        known = self._owner.setdefault(_torch.next_node() - 1, made)
        return known if known.operation == made.operation else made


def _function_outside_torch() -> str:
    """Name what saves a tensor without calling a torch function: checkpointing, or an autograd.Function."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("utils/checkpoint.py"):
            return "checkpoint"
        frame = frame.f_back
    return "autograd.Function"


class LiveStorages(_torch.TorchDispatchMode):
    """Adds a storage's bytes when an operator first returns it, and subtracts them when it is freed.

    `starting()` is called before an operator, and `ran(operator, keys of the storages that it made)` after it.
    """

    def __init__(
        self,
        round_to: int = 1,
        *,
        starting: Callable[[], None] = lambda: None,
        ran: Callable[[object, set[int]], None] = lambda operator, made: None,
    ):
        super().__init__()
        self._round_to, self._starting, self._ran = round_to, starting, ran
        self.live = 0
        # Key of a storage → its bytes, or None if it existed before.
        self.sizes: dict[int, int | None] = {}
        self._references: dict[int, weakref.ref] = {}
        #: the former bytes of storages that existed before and have been resized since
        self._before: dict[int, int] = {}
        self._resizes = ExitStack()
        #: whether an operator on real DTensors has begun, and none on a rank's own tensors since
        self._lays_out = False

    def __enter__(self) -> Any:
        # fully_shard frees and allocates storages without an operator.
        self._resizes.enter_context(_torch.storage_resizes(self._resized))
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._resizes.close()
        return super().__exit__(*error)

    def _resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Count a resized storage; of one that existed before, only the growth counts."""
        key = _torch.key_of(storage)
        if key not in self.sizes:
            self._references[key] = weakref.ref(storage, lambda _: self._freed(key))
            self.sizes[key] = None
        if self.sizes[key] is None:
            self._before[key], self.sizes[key] = before, 0
        self._count(storage, key)

    def _count(self, storage: torch.UntypedStorage, key: int) -> None:
        if (counted := self.sizes[key]) is not None:
            size = max(0, storage.nbytes() - self._before.get(key, 0))
            size = -(-size // self._round_to) * self._round_to
            self.live += size - counted  # also after resize_
            self.sizes[key] = size

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _torch.has_ranks(types):
            self._lays_out = not _torch.on_fakes()
            return NotImplemented
        # The first time, torch finds the layout of a DTensor's result with fake tensors of the whole, which use no memory.
        if self._lays_out and _torch.on_fakes():
            return operator(*args, **kwargs)
        self._lays_out = False
        if torch.is_inference_mode_enabled() and (result := self._parts(operator, args, kwargs)) is not NotImplemented:
            return result
        # torch.tensor([1.0]) makes its storage without an operator and announces it with lift_fresh.
        if operator is not torch.ops.aten.lift_fresh.default:
            for tensor in _torch.tensors((*args, *kwargs.values())):
                self._see(tensor, before=True)
        self._starting()
        result = operator(*args, **kwargs)
        made = {key for tensor in _torch.tensors(result) if (key := self._see(tensor, before=False)) is not None}
        self._ran(operator, made)
        return result

    def _parts(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Watch the parts of a composite operator, which only inference mode passes to us undecomposed."""
        # Only the mode is entered again; the hook for resized storages stays.
        super().__enter__()
        try:
            return operator.decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def _see(self, tensor: Tensor, *, before: bool) -> int | None:
        """Count the tensor's storage; return its key if it is new."""
        storage, key = tensor.untyped_storage(), _torch.storage_key(tensor)
        new = key not in self.sizes
        if new:
            self._references[key] = weakref.ref(storage, lambda _: self._freed(key))
            self.sizes[key] = None if before else 0
        self._count(storage, key)
        return key if new else None

    def _freed(self, key: int) -> None:
        self.live -= self.sizes.pop(key) or 0
        del self._references[key]
        self._before.pop(key, None)
