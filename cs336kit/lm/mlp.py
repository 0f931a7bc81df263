"""MLPs and their activations, and mixtures of experts."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm._shapes import Float
from cs336kit.lm.layers import Linear, module_or_none
from cs336kit.predict.checks import (
    boolean,
    fraction,
    known,
    positive_int,
)
from cs336kit.predict.transformer import GATED


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), where Φ is the distribution function of the standard normal. Equal to torch's gelu without approximation.

    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), also called swish. Equal to torch.nn.functional.silu. Source: Elfwing et al. 2017, equation 4."""
    return x * torch.sigmoid(x)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


#: Name of an MLP in a configuration → its activation.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu, "relu2": _relu2, "silu": F.silu, "swiglu": F.silu, "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"), "geglu_new": partial(F.gelu, approximate="tanh"),
    "reglu": F.relu, "relu2glu": _relu2,
}  # fmt: skip


class MLP(nn.Module):
    """The MLP of any name in ACTIVATIONS: down(act(up(x))), or down(act(gate(x)) · up(x)) for those with a gate.

    `biases` are the names of the matrices that have one; `inner_norm` normalizes the input of the down matrix.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, kind: str, biases: Container[str] = (), dropout: float = 0.0,
        inner_norm: nn.Module | None = None, **factory: Any,
    ):  # fmt: skip
        super().__init__()
        self.act = known("MLP", kind, ACTIVATIONS)
        self.gate = Linear(d_model, d_ff, bias="gate" in biases, **factory) if kind in GATED else None
        self.up = Linear(d_model, d_ff, bias="up" in biases, **factory)
        self.down = Linear(d_ff, d_model, bias="down" in biases, **factory)
        self.inner_norm = module_or_none("inner_norm", inner_norm)
        self.dropout = fraction("dropout", dropout, zero=True)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        z = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        z = self.down(z if self.inner_norm is None else self.inner_norm(z))
        return F.dropout(z, self.dropout, self.training)


def with_formula(kind: str, approximate: str) -> str:
    """The name of that MLP with this formula for the gelu, "none" or "tanh"; another formula raises ValueError."""
    tanh = {"gelu": "gelu_tanh", "geglu": "geglu_tanh"}
    return known("formula of the gelu", approximate, {"none": {}, "tanh": tanh}).get(kind, kind)


class GELUMLP(MLP):
    """down(gelu(up(x))), with F = d_ff, usually 4D. Parameters: 2DF, plus F + D with biases. FLOPs per token: 4DF.

    `approximate="tanh"` uses GPT-2's formula for the gelu. Dropout applies to the result, in training only.
    Saved for backward: x, the input of the gelu, its output (and the dropout mask).
    """

    def __init__(
        self, d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0, approximate: str = "none",
        **factory: Any,
    ):  # fmt: skip
        kind, biases = with_formula("gelu", approximate), ("up", "down") if boolean("bias", bias) else ()
        super().__init__(d_model, d_ff, kind=kind, biases=biases, dropout=dropout, **factory)


class SwiGLU(MLP):
    """down(silu(gate(x)) · up(x)): three matrices. Parameters: 3DF, plus 2F + D with biases. FLOPs per token: 6DF.

    With F = 8D/3 it is as large as a GELU MLP with F = 4D. Saved for backward: x, gate(x), up(x), silu and the product.
    Dropout applies to the result, in training only. Source: Shazeer 2020, equation 6.
    """

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0, **factory: Any):
        biases = ("gate", "up", "down") if boolean("bias", bias) else ()
        super().__init__(d_model, d_ff, kind="swiglu", biases=biases, dropout=dropout, **factory)


class SharedExpert(nn.Module):
    """A mixture plus a shared expert that every token visits, whose result may be weighted by a gate of its own.

    Source: Dai et al. 2024, section 3.2 (shared experts); the gate is Qwen1.5-MoE's.
    """

    def __init__(self, mixture: nn.Module, shared: nn.Module, *, gate: nn.Module | None = None):
        super().__init__()
        self.mixture, self.shared, self.gate = mixture, shared, gate

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        z = self.mixture(x)
        if self.gate is None:
            return z + self.shared(x)
        return z + self.shared(x) * torch.sigmoid(self.gate(x))


class MixtureOfExperts(nn.Module):
    """A router sends every token to `experts_per_token` of the experts; their outputs are summed with its weights.

    The weights are a softmax over the chosen experts' scores, so they sum to 1. Parameters: the experts' and D·experts
    of the router, which has a bias only on request. FLOPs per token: experts_per_token MLPs + 2·D·experts. Left out: the
    load-balancing loss, and a capacity (no token is dropped). How many tokens an expert gets depends on the data, so this
    module runs on real tensors only. Source: Shazeer et al. 2017, section 2; Jiang et al. 2024, section 2.1.
    """

    def __init__(
        self, d_model: int, experts: Sequence[nn.Module], *, experts_per_token: int, bias: bool = False, **factory: Any
    ):  # fmt: skip
        super().__init__()
        if positive_int("experts_per_token", experts_per_token) > len(experts):
            raise ValueError(f"experts_per_token={experts_per_token} is more than the {len(experts)} experts.")
        self.router = Linear(d_model, len(experts), bias=bias, **factory)
        self.experts = nn.ModuleList(experts)
        self.experts_per_token = experts_per_token

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        tokens = x.reshape(-1, x.shape[-1])
        scores, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)
        weights = torch.softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1).to(x.dtype)
        z = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            part = expert(tokens[token]) * weights[token, place, None]
            z.index_add_(0, token, part.to(z.dtype))
        return z.view_as(x)
