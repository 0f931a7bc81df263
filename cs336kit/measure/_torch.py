"""What the instruments use of torch without a promise that it stays: private names stand here and nowhere else.

`tests/torch/measure/test_torch.py` has one test for each, which says what broke when an upgrade of torch changes it.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _python_dispatch
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode, flop_registry

aten = torch.ops.aten


def _without_compiler(mode: type[_python_dispatch.TorchDispatchMode]) -> None:
    """Let a mode see operators without torch's compiler where nobody has imported it.

    Torch keeps its compiler from compiling what a mode does, and imports it for that at the first operator: two seconds.
    """
    kept_from_it = mode.__torch_dispatch__
    own = getattr(kept_from_it, "__wrapped__", None)
    if own is None:
        return

    def dispatch(*args, **kwargs):
        if not hasattr(sys.modules.get("torch._dynamo"), "disable"):
            return own(*args, **kwargs)
        mode.__torch_dispatch__ = kept_from_it
        return kept_from_it(*args, **kwargs)

    mode.__torch_dispatch__ = dispatch


class TorchDispatchMode(_python_dispatch.TorchDispatchMode):
    """Torch's, of which a subclass runs at once."""

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        if "__torch_dispatch__" in vars(cls):
            _without_compiler(cls)


class _Counter(_FlopCounterMode):
    """Torch's counter, at once."""


_without_compiler(_Counter)


def tensors(tree: object) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts, in place of a sparse one those that it is made of.

    A trace asks for each operator, where torch's own pytree is slow.
    """
    found: list[Tensor] = []
    _collect((tree,), found)
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
    """What tells storages apart while they live: addresses are 0 on meta and fake tensors, these are not."""
    return tensor.untyped_storage()._cdata


def key_of(storage: torch.UntypedStorage) -> int:
    """`storage_key` of the tensors that lie in it."""
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
        # Not in the order in which they came, where several threads listen.
        with _listening:
            _listeners.remove(resized)
            if not _listeners:
                torch.UntypedStorage.resize_ = _resize


_resize = torch.UntypedStorage.resize_
_listeners: list[Callable[[torch.UntypedStorage, int], None]] = []
_listening = threading.Lock()


def _announced(storage, size):
    before = storage.nbytes()
    result = _resize(storage, size)
    for resized in [*_listeners]:
        resized(storage, before)
    return result


def writes(operator) -> bool:
    """Whether an operator changes one of its arguments."""
    return operator._schema.is_mutable


def next_node() -> int:
    """The number that autograd gives the next node of the graph: it counts up, in each thread for itself."""
    return torch.autograd._get_sequence_nr()


def in_backward() -> bool:
    """Whether the engine runs a backward pass now."""
    return torch._C._current_graph_task_id() != -1


def running_node() -> int | None:
    """The number of the node whose backward runs now."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def run_backward(output: Tensor, seed: Tensor):
    """`output.backward(seed)` that leaves a function mode in force, which sees what checkpointing repeats."""
    torch.autograd.graph._engine_run_backward((output,), (seed,), False, False, (), accumulate_grad=True)


def node_shape(node) -> tuple[int, ...]:
    """The shape of a node's (first) result, () where it tells none."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def node_saved(node) -> list[tuple[str, Tensor]]:
    """What a node keeps: attributes _saved_* of built-in nodes, saved_tensors of a torch.autograd.Function."""
    values = [(name.removeprefix("_saved_"), getattr(node, name)) for name in dir(node) if name.startswith("_saved_")]
    values.append(("saved", getattr(node, "saved_tensors", ())))
    return [(name, tensor) for name, value in values for tensor in tensors(value)]


def scaled_product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The fp8 product that writes bf16, both factors with the same scale."""
    return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def module_hooks(before: Callable, after: Callable) -> list:
    """Call `before(module, inputs)` and `after(module, inputs, output)` around every module; returns what to remove."""
    return [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]


def flop_counter(record: Callable[[str, int], None]) -> _FlopCounterMode:
    """Torch's counter as a context manager that also calls `record(operator, FLOPs)` for every product that runs."""
    formulas = {op: _recording(op, formula, record) for op, formula in {**flop_registry, **FORMULAS}.items()}
    # The mode alone: the counter around it follows modules by hooks that keep recomputed tensors alive.
    return _Counter(FlopCounterMode(custom_mapping=formulas))


def _recording(operator, formula, record):
    name = _label(operator)

    def counted(*args, out_val=None, **kwargs):
        amount = formula(*args, **kwargs) if operator in FORMULAS else formula(*args, out_val=out_val, **kwargs)
        record(name, int(amount))
        return amount

    counted._get_raw = True  # hand over the tensors themselves, not only their shapes
    return counted


def _label(operator) -> str:
    """One name for the same operation on every device: fused attention and convolution have several kernels."""
    name = str(operator).removeprefix("aten.").lstrip("_")
    backward = " backward" if name.endswith("_backward") else ""
    families = {"attention": "attention", "conv": "convolution", "grouped_mm": "grouped_mm", "rnn": "recurrent layer"}
    for part, label in families.items():
        if part in name:
            return label + backward
    return name.removesuffix("_v2")


# --- FLOPs of the operators that torch's registry lacks, or counts otherwise ------------------------------------------


def _matmul(a, b, *args, **kwargs) -> int:
    return 2 * math.prod(a.shape) * (b.shape[-1] if b.dim() > 1 else 1)


def _add_matmul(start, a, b, **kwargs) -> int:
    return _matmul(a, b)


def _attention(query, key, value, *args, **kwargs) -> int:
    batch, heads, rows, width = query.shape
    return 2 * batch * heads * rows * key.shape[-2] * (width + value.shape[-1])


def _attention_backward(grad, query, key, value, *args, **kwargs) -> int:
    # Scores again, then the gradients of weights and values (value width), of queries and keys (key width).
    batch, heads, rows, width = query.shape
    return 2 * batch * heads * rows * key.shape[-2] * (3 * width + 2 * value.shape[-1])


def _convolution_backward(
    grad, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, output_mask, **kwargs
) -> int:
    # Torch's formula counts the weight's gradient as if one group had all channels.
    one = 2 * math.prod(weight.shape) * grad.shape[0] * math.prod((x if transposed else grad).shape[2:])
    return one * sum(output_mask[:2])


def _grouped(a, b, *args, **kwargs) -> int:
    # As if the groups covered every row: their ends are data, and reading them would stop a GPU.
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _recurrent(x, input_weight, hidden_weight, *args, **kwargs) -> int:
    return 2 * math.prod(x.shape[:-1]) * (input_weight.numel() + hidden_weight.numel())


def _cudnn_recurrent(x, weights, *args, **kwargs) -> int:
    return 2 * math.prod(x.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _twice(formula):
    return lambda *args, **kwargs: 2 * formula(*args)


FORMULAS = {
    getattr(aten, name): formula
    for name, formula in {
        "mv": _matmul,
        "addmv": _add_matmul,
        "dot": _matmul,
        "vdot": _matmul,
        "addbmm": _add_matmul,
        "convolution_backward": _convolution_backward,
        "_int_mm": _matmul,
        "_scaled_mm_v2": _matmul,
        "_grouped_mm": _grouped,
        "_scaled_grouped_mm": _grouped,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
        "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
        "mkldnn_rnn_layer": _recurrent,
        "mkldnn_rnn_layer_backward": _twice(_recurrent),
        "_cudnn_rnn": _cudnn_recurrent,
        "_cudnn_rnn_backward": _twice(_cudnn_recurrent),
    }.items()
    if hasattr(aten, name)  # some are younger than the oldest torch that the course supports
}


# --- collectives, and several ranks in one process ---------------------------------------------------------------------

#: Operator of torch.distributed → its collective, and which argument of the call is the whole of what is sent:
#: the number of an argument, or the share of one rank that is to be multiplied.
COLLECTIVES = {
    "allreduce_": ("all-reduce", 0, False), "allreduce_coalesced_": ("all-reduce", 0, False),
    "all_reduce": ("all-reduce", 0, False), "all_reduce_": ("all-reduce", 0, False),
    "_allgather_base_": ("all-gather", 0, False), "allgather_": ("all-gather", 0, False),
    "allgather_into_tensor_coalesced_": ("all-gather", 0, False), "all_gather_into_tensor": ("all-gather", 0, True),
    "all_gather_into_tensor_coalesced": ("all-gather", 0, True),
    "_reduce_scatter_base_": ("reduce-scatter", 1, False), "reduce_scatter_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor_coalesced_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor": ("reduce-scatter", 0, False),
    "reduce_scatter_tensor_coalesced": ("reduce-scatter", 0, False),
    "alltoall_base_": ("all-to-all", 1, False), "alltoall_": ("all-to-all", 1, False),
    "all_to_all_single": ("all-to-all", 0, False),
    "broadcast_": ("broadcast", 0, False), "broadcast": ("broadcast", 0, False), "reduce_": ("reduce", 0, False),
    "gather_": ("gather", 1, True), "scatter_": ("scatter", 0, True), "send": ("send", 0, False),
}  # fmt: skip


class Collectives(TorchDispatchMode):
    """Calls `record(kind, bytes of the whole, ranks)` for every collective that runs."""

    def __init__(self, record: Callable[[str, int, int], None]):
        super().__init__()
        self.record = record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if has_ranks(types):
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        if "c10d" in func.namespace and name in COLLECTIVES:
            kind, which, share = COLLECTIVES[name]
            count = group_size(args)
            whole = sum(t.numel() * t.element_size() for t in map(local, tensors(args[which])))
            self.record(kind, whole * (count if share else 1), count)
            return self.run(func, name, args, kwargs or {})
        return func(*args, **kwargs or {})

    def run(self, func, name, args, kwargs):
        return func(*args, **kwargs)


def has_ranks(types: Iterable[type]) -> bool:
    """Whether an operator is called on DTensors: it comes again with the tensors of the ranks."""
    return any(map(_is_dtensor, types))


def on_fakes() -> bool:
    """Whether operators run on fake tensors now."""
    return torch._guards.active_fake_mode() is not None


def _is_dtensor(kind: type) -> bool:
    """Without importing what takes a second: where nobody has, there are none."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and issubclass(kind, known.DTensor)


def group_size(args) -> int:
    """The ranks of the process group among the arguments of a collective."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    for arg in args:
        if isinstance(arg, str) and arg not in ("sum", "avg", "product", "min", "max"):
            return _resolve_process_group(arg).size()
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg).size()
        if isinstance(arg, dist.ProcessGroup):
            return arg.size()
    return dist.get_world_size()


def local(tensor: Tensor) -> Tensor:
    """The tensor that one rank holds: the first of several in this process, a DTensor's part, arrived or on its way."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    tensor = getattr(tensor, "elem", tensor)
    several = getattr(tensor, "_local_tensors", None)
    return tensor if several is None else next(iter(several.values()))


def rank_values(tensor: Tensor, count: int) -> list[Tensor]:
    """What each of `count` ranks in this process holds: a plain tensor is the same for all."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    tensor = getattr(tensor, "elem", tensor)
    several = getattr(tensor, "_local_tensors", None)
    return [tensor] * count if several is None else [several[rank] for rank in range(count)]


class LocalCollectives(Collectives):
    """The same for ranks in this process, with the collectives that torch has only between processes."""

    def run(self, func, name, args, kwargs):
        for tensor in tensors(args):
            if not hasattr(tensor, "_local_tensors"):
                raise ValueError(
                    f"a plain tensor of shape {tuple(tensor.shape)} belongs to no rank: make it inside of "
                    "`with measure.local_ranks(n) as ranks`, or by ranks.each(function)."
                )
        if name in ("gather_", "reduce_"):
            import torch.distributed as dist

            if (count := group_size(args)) != dist.get_world_size():
                raise ValueError(
                    f"ranks in one process {name.strip('_')} over all of them only, and this group has {count}."
                )
            with torch.no_grad():
                return self._gather(*args) if name == "gather_" else self._reduce(*args)
        if name in ("send", "recv_", "recv_any_source_"):
            raise ValueError(
                f"{name.strip('_')} is said by one rank alone, and these ranks run every line together: use "
                "measure.run_ranks, whose ranks are processes, or a collective such as broadcast."
            )
        return func(*args, **kwargs)

    @staticmethod
    def _gather(outputs, inputs, group, root, *rest):
        if not outputs or not outputs[0]:
            raise ValueError("ranks in one process gather to rank 0: write dst=0, and give the list of tensors.")
        for rank, output in enumerate(outputs[0]):
            output._local_tensors[root].copy_(inputs[0]._local_tensors[rank])
        return _done()

    @staticmethod
    def _reduce(reduced, group, operation, root, *rest):
        everywhere = reduced[0].clone()
        torch.ops.c10d.allreduce_.default([everywhere], group, operation, None)
        reduced[0]._local_tensors[root].copy_(everywhere._local_tensors[root])
        return _done()


def _done():
    from torch._C._distributed_c10d import FakeWork, Work

    return Work.boxed(FakeWork())


def start_local_ranks(count: int, record: Callable[[str, int, int], None]):
    """Start `count` ranks inside this process: (the mode that runs every line for each, what watches collectives)."""
    from torch.distributed._local_tensor import LocalTensorMode

    start_fake_ranks(count, 0)
    return LocalTensorMode(count), LocalCollectives(record)


def start_fake_ranks(count: int, rank: int) -> None:
    """A process group that answers at once and sends nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
