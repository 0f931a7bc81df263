"""The MLP of a block: each token by itself, up to a wider space and back."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336kit.lm.linear import Linear
from cs336kit.predict._common.checks import fraction, positive_int


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), where Φ is the distribution function of the standard normal. Equal to torch's gelu, without its tanh.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), also called swish. Equal to torch.nn.functional.silu. Source: Elfwing et al. 2017, equation 4."""
    return x * torch.sigmoid(x)


class GELUMLP(nn.Module):
    """down(gelu(up(x))), with F = d_ff, usually 4D. Parameters: 2DF, plus F + D with biases. FLOPs per token: 4DF.

    `approximate="tanh"` uses GPT-2's formula for the gelu. Dropout falls on the result, in training only.
    Kept for backward: x, the input of the gelu, its output (and the dropout mask).
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0, approximate: str = "none"):
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)
        self.dropout = fraction("dropout", dropout, zero=True)
        self.approximate = approximate

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        z = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return F.dropout(z, self.dropout, self.training)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)): three matrices. Parameters: 3DF, plus 2F + D with biases. FLOPs per token: 6DF.

    With F = 8D/3 it is as large as a GELU MLP with F = 4D. Kept for backward: x, gate(x), up(x), silu and the product.
    Dropout falls on the result, in training only. Source: Shazeer 2020, equation 6.
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0):
        super().__init__()
        self.gate = Linear(d_model, d_ff, bias=bias)
        self.up = Linear(d_model, d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)
        self.dropout = fraction("dropout", dropout, zero=True)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        z = self.down(F.silu(self.gate(x)) * self.up(x))
        return F.dropout(z, self.dropout, self.training)


class MixtureOfExperts(nn.Module):
    """A router sends every token to `experts_per_token` of the experts; their outputs are summed with its weights.

    The weights are a softmax over the chosen experts' scores, so they sum to 1. Parameters: the experts' and D·experts
    of the router, which has no bias. FLOPs per token: experts_per_token MLPs + 2·D·experts. Left out: the loss that
    balances the experts, and a capacity (no token is dropped). Which expert sees how many tokens depends on the data,
    so this module runs on real tensors only. Source: Shazeer et al. 2017, section 2; Jiang et al. 2024, section 2.1.
    """

    def __init__(self, d_model: int, experts: list[nn.Module], *, experts_per_token: int):
        super().__init__()
        if positive_int("experts_per_token", experts_per_token) > len(experts):
            raise ValueError(f"experts_per_token={experts_per_token} is more than the {len(experts)} experts.")
        self.router = Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.experts_per_token = experts_per_token

    def forward(self, x: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
        tokens = x.reshape(-1, x.shape[-1])
        scores, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)
        weights = torch.softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1).to(x.dtype)
        z = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            part = expert(tokens[token]) * weights[token, place, None]
            z.index_add_(0, token, part.to(z.dtype))
        return z.view_as(x)
