"""What the instruments use of torch without a promise that it stays: private names stand here and nowhere else.

`tests/torch/measure/test_torch.py` has one test for each, which says what broke when an upgrade of torch changes it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode, flop_registry

aten = torch.ops.aten


def tensors(tree: object) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts. A trace asks for each operator, where torch's own pytree is slow."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def storage_key(tensor: Tensor) -> int:
    """What tells storages apart while they live: addresses are 0 on meta and fake tensors, these are not."""
    return tensor.untyped_storage()._cdata


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
    torch.autograd.graph._engine_run_backward(
        (output,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def node_shape(node) -> tuple[int, ...]:
    """The shape of a node's (first) result, () where it tells none."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def node_saved(node) -> list[tuple[str, Tensor]]:
    """What a node keeps: attributes _saved_* of built-in nodes, saved_tensors of a torch.autograd.Function."""
    values = [(name.removeprefix("_saved_"), getattr(node, name)) for name in dir(node) if name.startswith("_saved_")]
    values.append(("saved", getattr(node, "saved_tensors", ())))
    lists = [(name, value if isinstance(value, tuple | list) else (value,)) for name, value in values]
    return [(name, tensor) for name, value in lists for tensor in value if isinstance(tensor, Tensor)]


def scaled_product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The fp8 product that writes bf16, both factors with the same scale."""
    return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def module_hooks(before: Callable, after: Callable) -> list:
    """Call `before(module, inputs)` and `after(module, inputs, output)` around every module; returns what to remove."""
    return [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]


def flop_counter(record: Callable[[str, int], None]) -> TorchDispatchMode:
    """Torch's counter as a context manager that also calls `record(operator, FLOPs)` for every product that runs."""
    formulas = {op: _recording(op, formula, record) for op, formula in {**flop_registry, **FORMULAS}.items()}
    # The mode alone: the counter around it follows modules by hooks that keep recomputed tensors alive.
    return _FlopCounterMode(FlopCounterMode(display=False, custom_mapping=formulas))


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


# --- FLOPs of the operators that torch's registry lacks ---------------------------------------------------------------


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
