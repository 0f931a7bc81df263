"""Linear layers whose three matrix products run in fp8, with one scale per tensor."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit import _torch
from cs336kit.lm.layers import Linear
from cs336kit.predict.checks import boolean

#: The two formats as torch's element types.
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

#: Output layers stay in bf16, since their error goes straight into the loss. Matched against the last part of a
#: module's name.
KEPT = ("head", "lm_head", "final")


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `x` in an fp8 dtype and the fp32 scale that undoes it: x ≈ q · scale.

    The scale maps the largest magnitude of this tensor to the largest number of the format ("current scaling"). A tensor
    of zeros gets scale 1, and no scale is below fp32's smallest normal number. An infinity or NaN in x makes the scale,
    and so the product, infinite or NaN.
    """
    largest = torch.finfo(dtype).max
    amax = x.abs().amax().float()
    # A NaN passes through: for it, no comparison is true.
    scale = torch.where(amax == 0, 1.0, (amax / largest).clamp(min=torch.finfo(torch.float32).tiny))
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def scaled_matmul(
    a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype, fast: bool = False
) -> Tensor:
    """(M, K) @ (K, N) of two fp8 tensors, accumulated in fp32 and multiplied by both scales, in `dtype`.

    The hardware reads both operands along K, so a must be row-major and b column-major; both are copied if needed. `fast`:
    tensor cores keep their running sum, of fewer bits than fp32; else it goes to an fp32 register every few products.
    """
    boolean("fast", fast)
    a, b = a.contiguous(), b.t().contiguous().t()
    return _torch.scaled_product(a, b, scale_a=scale_a, scale_b=scale_b, dtype=dtype, fast=fast)


class Float8Matmul(torch.autograd.Function):
    """x (M, K) times weight (N, K) transposed: x·Wᵀ forward, and both gradients, each one fp8 product.

    Values and weights use E4M3, whose extra fraction bit is worth more there; gradients use E5M2 for its range.
    Saved for backward: x and W in one byte per element. As in Transformer Engine, only the forward product sums the fast way:
    the errors of gradients add up over the steps.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (x8, x_scale), (w8, w_scale) = quantize(x, E4M3), quantize(weight, E4M3)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        ctx.dtypes = x.dtype, weight.dtype
        return scaled_matmul(x8, w8.t(), scale_a=x_scale, scale_b=w_scale, dtype=torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        g8, g_scale = quantize(gradient, E5M2)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = scaled_matmul(g8, w8, scale_a=g_scale, scale_b=w_scale, dtype=torch.bfloat16).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            dw = scaled_matmul(g8.t(), x8, scale_a=g_scale, scale_b=x_scale, dtype=torch.float32).to(ctx.dtypes[1])
        return dx, dw


class Float8Linear(nn.Module):
    """A linear layer with the parameters of `linear` themselves (fp32 masters) and fp8 products; output in bf16.

    A GPU's products need K, N and the number of rows M to be multiples of 16: rows are padded with zeros, which change no sum.
    """

    def __init__(self, linear: Any):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):  # an expert without tokens has no largest magnitude
            bias = None if self.bias is None else self.bias.bfloat16()
            return F.linear(x.bfloat16(), self.weight.bfloat16(), bias)
        count = len(rows)
        if lacking := -count % 16:  # as for an expert, whose number of rows the router decides
            rows = F.pad(rows, (0, 0, 0, lacking))
        out = Float8Matmul.apply(rows, self.weight)[:count].reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def fits_float8(name: str, module: nn.Module) -> bool:
    """Whether a module is a linear layer that may run in fp8: both dimensions multiples of 16, and not an output layer."""
    if not isinstance(module, nn.Linear | Linear) or name.rpartition(".")[2] in KEPT:
        return False
    return all(side % 16 == 0 for side in module.weight.shape)


def use_float8(model: nn.Module) -> nn.Module:
    """Replace the linear layers of `model` that fit with `Float8Linear`, in place; names and parameters stay."""
    return _replace(model, Float8Linear)


def use_transformer_engine(model: nn.Module) -> nn.Module:
    """Replace the same layers with Transformer Engine's, which get copies of the weights."""
    engine = transformer_engine()

    def layer(linear: Any) -> nn.Module:
        outputs, inputs = linear.weight.shape
        new = engine.Linear(inputs, outputs, bias=linear.bias is not None, params_dtype=linear.weight.dtype)
        new.load_state_dict(linear.state_dict(), strict=False)
        return new.to(linear.weight.device)

    return _replace(model, layer)


def transformer_engine() -> Any:
    """Return the module transformer_engine.pytorch; if it is not installed, ImportError says how to install it."""
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except ImportError as error:
        raise ImportError(
            "Transformer Engine is not installed. On a machine with an NVIDIA GPU: pip install 'cs336kit[fp8]'. "
            'Or take engine="torch", which needs nothing more.'
        ) from error


def _replace(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    chosen = [name for name, module in model.named_modules() if fits_float8(name, module)]
    if not chosen:
        raise ValueError("no linear layer of this model fits fp8: both sides must be multiples of 16.")
    for name in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, make(model.get_submodule(name)))
    return model
