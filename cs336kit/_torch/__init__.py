"""The unstable parts of torch that the instruments and fp8 use: private names occur in this folder and nowhere else.

`tests/kit/measure/test_torch.py` has a test for each, which tells what broke if an upgrade of torch changes it.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _python_dispatch


def without_compiler(mode: type[_python_dispatch.TorchDispatchMode]) -> None:
    """Let a mode run without importing torch's compiler unless somebody else has.

    Torch disables its compiler inside a mode, and imports it for that at the first operator, which takes two seconds.
    """
    kept_from_it = mode.__torch_dispatch__
    own = getattr(kept_from_it, "__wrapped__", None)
    if own is None:
        return

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if not hasattr(sys.modules.get("torch._dynamo"), "disable"):
            return own(*args, **kwargs)
        mode.__torch_dispatch__ = kept_from_it
        return kept_from_it(*args, **kwargs)

    mode.__torch_dispatch__ = dispatch


def operation_name(value: Any) -> str | None:
    """The name below torch of torch.ops, or of such as torch.ops.aten.mm in it; None for anything else."""
    if type(value).__module__ != "torch._ops":
        return None
    return value.__name__.partition(".")[2] if isinstance(value, ModuleType) else f"ops.{value}"


class TorchDispatchMode(_python_dispatch.TorchDispatchMode):
    """torch's TorchDispatchMode, without the import of its compiler."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "__torch_dispatch__" in vars(cls):
            without_compiler(cls)


def tensors(tree: object) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts; a sparse tensor is replaced by its parts.

    A trace calls this for each operator, for which torch's own pytree is too slow.
    """
    found: list[Tensor] = []
    _collect(tree if isinstance(tree, (list, tuple)) else (tree,), found)
    return found


def _collect(parts: Iterable[object], found: list[Tensor]) -> None:
    for part in parts:
        if isinstance(part, Tensor):
            if part.layout is torch.strided:
                found.append(part)
            else:
                found.extend(_sparse_parts(part))
        elif isinstance(part, (list, tuple)):
            _collect(part, found)
        elif isinstance(part, dict):
            _collect(part.values(), found)


def _sparse_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def storage_key(tensor: Tensor) -> int:
    """Identifies a storage as long as it is alive, also on meta and fake tensors, whose addresses are 0."""
    return tensor.untyped_storage()._cdata


def key_of(storage: torch.UntypedStorage) -> int:
    """`storage_key` of the tensors in this storage."""
    return storage._cdata


@contextmanager
def storage_resizes(resized: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Call `resized(storage, bytes before)` whenever Python code resizes a storage, which no operator announces."""
    with _listening:
        if not _listeners:
            torch.UntypedStorage.resize_ = _announced
        _listeners.append(resized)
    try:
        yield
    finally:
        # With several threads, listeners may leave in another order than they came.
        with _listening:
            _listeners.remove(resized)
            if not _listeners:
                torch.UntypedStorage.resize_ = _resize


_resize = torch.UntypedStorage.resize_
_listeners: list[Callable[[torch.UntypedStorage, int], None]] = []
_listening = threading.Lock()


def _announced(storage: torch.UntypedStorage, size: int) -> Any:
    before = storage.nbytes()
    result = _resize(storage, size)
    for resized in [*_listeners]:
        resized(storage, before)
    return result


def writes(operator: Any) -> bool:
    """Whether an operator changes one of its arguments."""
    return operator._schema.is_mutable


def next_node() -> int:
    """The number that autograd gives the next node of the graph; it counts up separately in each thread."""
    return torch.autograd._get_sequence_nr()


def in_backward() -> bool:
    """Whether the engine is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


def running_node() -> int | None:
    """The number of the node whose backward is running."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def run_backward(output: Tensor, seed: Tensor) -> None:
    """`output.backward(seed)` that keeps a function mode active, which then sees what checkpointing recomputes."""
    torch.autograd.graph._engine_run_backward((output,), (seed,), False, False, (), accumulate_grad=True)


def node_shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's (first) result, or () if it has none."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def node_saved(node: Any) -> list[tuple[str, Tensor]]:
    """What a node saves: attributes _saved_* of built-in nodes, saved_tensors of a torch.autograd.Function."""
    values = [(name.removeprefix("_saved_"), getattr(node, name)) for name in dir(node) if name.startswith("_saved_")]
    values.append(("saved", getattr(node, "saved_tensors", ())))
    return [(name, tensor) for name, value in values for tensor in tensors(value)]


def scaled_product(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype = torch.bfloat16, fast: bool = True
) -> Tensor:
    """The product of two fp8 tensors times both scales, in `dtype`; a is row-major and b column-major.

    `fast`: sums stay in the tensor cores until the end, as for the peak in a datasheet; Hopper is slower if it accumulates them
    in fp32 along the way (CUBLASLT_MATMUL_DESC_FAST_ACCUM). Not F.scaled_mm, the public name: torch.compile cannot trace it
    (seen with 2.11 on a GPU), and it takes longer to start.
    """
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)


@contextmanager
def fp32_products(rounding: str, *, device: str = "cuda") -> Iterator[None]:
    """Let a device's products of fp32 numbers round their inputs to TF32 ("tf32") or not ("ieee") inside the block.

    torch's older function, set_float32_matmul_precision, cannot be mixed with this.
    """
    setting = torch.backends.cuda.matmul if device == "cuda" else torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = rounding
    try:
        yield
    finally:
        setting.fp32_precision = "none"  # follow torch.backends.fp32_precision again, if it did before
        if setting.fp32_precision != before:
            setting.fp32_precision = before


def module_hooks(before: Callable, after: Callable) -> list:
    """Call `before(module, inputs)` and `after(module, inputs, output)` around every module; returns handles to remove."""
    return [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]


def has_ranks(types: Iterable[type]) -> bool:
    """Whether an operator is called on DTensors; it is called again on the tensors of the ranks."""
    return any(map(_is_dtensor, types))


def on_fakes() -> bool:
    """Whether operators are running on fake tensors."""
    return torch._guards.active_fake_mode() is not None


def _is_dtensor(kind: type) -> bool:
    """Without importing torch.distributed.tensor, which takes a second: unless it is imported, there are no DTensors."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and issubclass(kind, known.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The tensor of one rank: the first of several in this process, or a DTensor's part, even if still in flight."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    tensor = getattr(tensor, "elem", tensor)
    several = getattr(tensor, "_local_tensors", None)
    return tensor if several is None else next(iter(several.values()))
