"""Normalisation over the width of the residual stream, per token: never over the sequence or the batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336kit.predict._common.checks import positive_int


def layer_norm(
    x: Float[Tensor, "... D"],
    weight: Float[Tensor, " D"],
    bias: Float[Tensor, " D"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "... D"]:
    """LayerNorm written out: subtract the mean over D, divide by the standard deviation over D, scale and shift.

    The variance is the biased one (divided by D, not D − 1). Equal to torch.nn.functional.layer_norm, which keeps less
    for backward: the input and two numbers per token. Source: Ba et al. 2016, equation 4.
    """
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    y = (x - mean) * torch.rsqrt(variance + eps) * weight
    return y if bias is None else y + bias


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters: a scale, and a shift unless bias=False. Parameters: 2D (or D).

    Computed by torch's fused kernel. Kept for backward: the input, and mean and 1/deviation of every token.
    """

    def __init__(self, width: int, *, bias: bool = True, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(positive_int("width", width)))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · scale: LayerNorm without the mean and the shift. Parameters: D.

    Computed in fp32 whatever the input's dtype, since x² overflows fp16 at 256; the result has the input's dtype.
    Kept for backward, in fp32: x, the normalised x, and one number per token. Equal to torch.nn.functional.rms_norm.
    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, width: int, *, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(positive_int("width", width)))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normalised = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (normalised * self.weight).to(x.dtype)
