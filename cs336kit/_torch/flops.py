"""FLOPs of operators: torch's counter, and formulas that its registry lacks or that we count differently."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode, flop_registry

from cs336kit import _torch

aten = torch.ops.aten


class _Counter(_FlopCounterMode):
    """torch's counter, without the import of its compiler."""


_torch.without_compiler(_Counter)


def flop_counter(record: Callable[[str, int], None]) -> _FlopCounterMode:
    """torch's counter as a context manager that also calls `record(operator, FLOPs)` for every product that runs."""
    formulas = {op: _recording(op, formula, record) for op, formula in {**flop_registry, **FORMULAS}.items()}
    # Only the mode: the counter around it tracks modules with hooks that keep recomputed tensors alive.
    return _Counter(FlopCounterMode(custom_mapping=formulas))


def _recording(operator: Any, formula: Callable[..., Any], record: Callable[[str, int], None]) -> Callable[..., Any]:
    name = _label(operator)

    def counted(*args: Any, out_val: Any = None, **kwargs: Any) -> Any:
        amount = formula(*args, **kwargs) if operator in FORMULAS else formula(*args, out_val=out_val, **kwargs)
        record(name, int(amount))
        return amount

    counted._get_raw = True  # type: ignore[attr-defined] # pass the tensors themselves, not only their shapes
    return counted


def _label(operator: Any) -> str:
    """One name for the same operation on every device: fused attention and convolution have several kernels."""
    name = str(operator).removeprefix("aten.").lstrip("_")
    backward = " backward" if name.endswith("_backward") else ""
    families = {"attention": "attention", "conv": "convolution", "grouped_mm": "grouped_mm", "rnn": "recurrent layer"}
    for part, label in families.items():
        if part in name:
            return label + backward
    return name.removesuffix("_v2")


# --- FLOPs of the operators that torch's registry lacks or counts differently -----------------------------------------


def _matmul(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(a.shape) * (b.shape[-1] if b.dim() > 1 else 1)


def _add_matmul(start: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> int:
    return _matmul(a, b)


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    batch, heads, rows, width = query.shape
    return 2 * batch * heads * rows * key.shape[-2] * (width + value.shape[-1])


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    # The scores again, then gradients of weights and values (value width) and of queries and keys (key width).
    batch, heads, rows, width = query.shape
    return 2 * batch * heads * rows * key.shape[-2] * (3 * width + 2 * value.shape[-1])


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Any, **kwargs: Any,
) -> int:  # fmt: skip
    # torch's formula counts the weight's gradient as if one group had all channels.
    one = 2 * math.prod(weight.shape) * grad.shape[0] * math.prod((x if transposed else grad).shape[2:])
    return one * sum(output_mask[:2])


def _grouped(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> int:
    # As if the groups covered every row: their ends are data, and reading them would synchronize with the GPU.
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _recurrent(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x.shape[:-1]) * (input_weight.numel() + hidden_weight.numel())


def _cudnn_recurrent(x: Tensor, weights: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _twice(formula: Callable[..., int]) -> Callable[..., int]:
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
    if hasattr(aten, name)  # some are newer than the oldest torch that the course supports
}
