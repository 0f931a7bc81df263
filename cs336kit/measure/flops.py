"""Count the FLOPs of a function while it runs, by operator, by module or by pass."""

import math
import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from cs336kit.measure.calls import runnable
from cs336kit.predict import Breakdown

aten = torch.ops.aten
GROUPINGS = ("operator", "module", "pass")


def flops(function: Callable[[], object], *, by: str = "operator", depth: int | None = None) -> Breakdown:
    """Run `function()` once and return the FLOPs of its matrix products, a Breakdown by operator, module or pass.

    Convention: a multiply and an add are two FLOPs; attention is counted in full, also where a causal mask hides half.
    Counted on CPU and GPU alike, forward and backward: products of matrices and vectors, convolutions, grouped and
    scaled matrix products, recurrent layers, fused attention (2 products forward; 5 backward, explicit needs 4).
    Left out, as in torch: element-wise operations, outer products, reductions, softmax, norms, embeddings, bilinear
    layers, factorisations, and what a compiled graph runs. Nothing counted is a Breakdown with total 0.
    `by="module"` gives each module what its own code ran (the backward pass too), names cut to `depth` parts;
    `by="pass"` splits forward from backward.
    Source: torch.utils.flop_counter, with formulas for the operators that it lacks.
    """
    runnable("measure.flops", function)
    if by not in GROUPINGS:
        raise ValueError(f"by must be one of {', '.join(map(repr, GROUPINGS))}, got {by!r}.")
    if depth is not None and (by != "module" or isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise ValueError(f"depth cuts the names of by='module' to a whole number of parts, at least 1; got {depth!r}.")
    counts: dict[str, int] = {}
    where = _Modules()

    def record(operator, amount: int):
        if by == "operator":
            name = operator
        elif by == "pass":
            name = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
        else:
            name = where.name(depth)
        counts[name] = counts.get(name, 0) + int(amount)

    formulas = {op: _recording(op, formula, record) for op, formula in {**flop_registry, **FORMULAS}.items()}
    # In inference torch would run whole encoder layers as one operator, whose insides no counter sees.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with where, FlopCounterMode(display=False, custom_mapping=formulas):
            function()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return Breakdown({name: amount for name, amount in counts.items() if amount}, unit="FLOPs")


# --- formulas that torch's registry lacks -----------------------------------------------------------------------------


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


def _matrix_vector(matrix, vector, **kwargs) -> int:
    return 2 * matrix.numel()


def _add_matrix_vector(start, matrix, vector, **kwargs) -> int:
    return 2 * matrix.numel()


def _dot(a, b, **kwargs) -> int:
    return 2 * a.numel()


def _matmul(a, b, *args, **kwargs) -> int:
    return 2 * math.prod(a.shape) * b.shape[-1]


def _add_batched(start, a, b, **kwargs) -> int:
    return _matmul(a, b)


def _recurrent(x, input_weight, hidden_weight, *args, **kwargs) -> int:
    return 2 * math.prod(x.shape[:-1]) * (input_weight.numel() + hidden_weight.numel())


def _recurrent_backward(*args, **kwargs) -> int:
    return 2 * _recurrent(*args)


def _cudnn_recurrent(x, weights, *args, **kwargs) -> int:
    return 2 * math.prod(x.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _cudnn_recurrent_backward(x, weights, *args, **kwargs) -> int:
    return 2 * _cudnn_recurrent(x, weights)


FORMULAS = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mv: _matrix_vector,
    aten.addmv: _add_matrix_vector,
    aten.dot: _dot,
    aten.vdot: _dot,
    aten.addbmm: _add_batched,
    aten._int_mm: _matmul,
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    aten._cudnn_rnn: _cudnn_recurrent,
    aten._cudnn_rnn_backward: _cudnn_recurrent_backward,
} | {
    getattr(aten, name): formula
    for name, formula in (
        ("_scaled_dot_product_fused_attention_overrideable", _attention),
        ("_scaled_dot_product_fused_attention_overrideable_backward", _attention_backward),
        ("_grouped_mm", _grouped),
        ("_scaled_grouped_mm", _grouped),
        ("_scaled_mm_v2", _matmul),
    )
    if hasattr(aten, name)  # some are younger than the oldest torch that the course supports
}


def _recording(operator, formula, record):
    name = _label(operator)

    def counted(*args, out_val=None, **kwargs):
        amount = formula(*args, **kwargs) if operator in FORMULAS else formula(*args, out_val=out_val, **kwargs)
        record(name, amount)
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


# --- which module ran an operator -------------------------------------------------------------------------------------


class _Modules:
    """Knows the module whose code is running, in the backward pass too.

    Autograd numbers its nodes in the order in which the forward pass creates them, so the module of a node is the
    innermost one whose call spans its number.
    """

    OUTSIDE = "outside modules"

    def __init__(self):
        self._names, self._stack, self._calls, self._hooks = {}, [], [], []
        self._thread = threading.get_ident()

    def __enter__(self):
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, inputs):
        if module not in self._names:
            root = type(module).__name__
            above = f"{self._stack[-1][0]}." if self._stack else ""
            for name, child in module.named_modules():
                self._names.setdefault(child, f"{above}{root}.{name}" if name else f"{above}{root}")
        self._stack.append((self._names[module], self._sequence(), threading.get_ident()))

    def _leave(self, module: nn.Module, inputs, output):
        name, first, thread = self._stack.pop()
        if thread == self._thread:  # a recomputation on a GPU's backward thread has numbers of its own
            self._calls.append((name, first, self._sequence()))

    @staticmethod
    def _sequence() -> int:
        return torch.autograd._get_sequence_nr()

    def name(self, depth: int | None) -> str:
        name = self._stack[-1][0] if self._stack else self._of_node(torch._C._current_autograd_node())
        return ".".join(name.split(".")[:depth]) if depth else name

    def _of_node(self, node) -> str:
        if node is None:
            return self.OUTSIDE
        number = node._sequence_nr()
        for name, first, end in self._calls:  # a call is listed after those inside it, so the first hit is innermost
            if first <= number < end:
                return name
        return self.OUTSIDE
