"""The layers of a decoder: linear, embedding, norms, rotary positions, MLPs.

Every layer takes `device` and `dtype` for its parameters, as torch's own layers do.
"""

import math
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm._shapes import Float, Int
from cs336kit.predict.checks import (
    boolean,
    fraction,
    known,
    non_negative_number,
    one_of,
    positive_int,
    positive_number,
    shown,
)
from cs336kit.predict.transformer import GATED

#: Which dimensions of a head rotary positions rotate as a pair: i with i + h/2, or 2i with 2i + 1.
PAIRS = ("halves", "neighbours")


class Linear(nn.Module):
    """y = x Wᵀ + b over the last axis; the weight is stored (outputs, inputs), as in torch.nn.Linear.

    Weights start normal with standard deviation 1/√inputs, truncated at three of them, so that an input of unit variance
    keeps its variance; biases start at 0. `bias=False` leaves the bias out. Parameters: inputs · outputs (+ outputs).
    Saved for backward: the input (and the weight, which is a parameter).
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        positive_int("inputs", inputs)
        positive_int("outputs", outputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, device=device, dtype=dtype)) if boolean("bias", bias) else None
        self.initialize(deviation=1 / math.sqrt(inputs))

    def initialize(self, *, deviation: float, cut: float = 3) -> None:
        """Redraw the weight from a normal of this standard deviation, truncated at `cut` of them; on meta, do nothing."""
        # With the inverse distribution function: torch's trunc_normal_ inspects the values that it has drawn, and fake tensors
        # (a 70B model on a laptop) have none.
        if self.weight.is_meta:
            return
        if math.isinf(cut):
            nn.init.normal_(self.weight, std=deviation)
            return
        edge = math.erf(cut / math.sqrt(2))
        with torch.no_grad():
            # At least in fp32: of bf16's few numbers from −edge to edge, the last is near −1, and there are fewer of them
            # on one side of 0 than on the other.
            dtype = torch.promote_types(self.weight.dtype, torch.float32)
            wide = self.weight if self.weight.dtype == dtype else torch.empty_like(self.weight, dtype=dtype)
            wide.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2) * deviation)
            wide.clamp_(-cut * deviation, cut * deviation)
            if wide is not self.weight:
                self.weight.copy_(wide)

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} → {outputs}, bias={self.bias is not None}"


class Embedding(nn.Module):
    """A table with one vector per token: row `token` of a (tokens, width) matrix. A lookup, no FLOPs.

    Rows start normal with standard deviation 0.02 (Radford et al. 2018, section 4.1). Parameters: tokens · width.
    A token outside the table raises IndexError (on a GPU, torch's own assertion).
    """

    def __init__(self, tokens: int, width: int, *, device: Any = None, dtype: Any = None):
        super().__init__()
        shape = positive_int("tokens", tokens), positive_int("width", width)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "..."]) -> Float[Tensor, "... width"]:
        # Equal to self.weight[tokens], whose backward is much slower.
        try:
            return F.embedding(tokens, self.weight)
        except IndexError:
            raise IndexError(
                f"a token is outside the table: it has rows 0 to {len(self.weight) - 1}. Was the text tokenized for "
                "another vocabulary?"
            ) from None

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} × {self.weight.shape[1]}"


def layer_norm(
    x: Float[Tensor, "... D"], weight: Float[Tensor, " D"], bias: Float[Tensor, " D"] | None = None, *,
    eps: float = 1e-5,
) -> Float[Tensor, "... D"]:  # fmt: skip
    """LayerNorm written out: subtract the mean over D, divide by the standard deviation over D, scale and shift.

    Never over the sequence or the batch. The variance is the biased one (divided by D, not D − 1). Computed in fp32 whatever
    the input's dtype, since squares overflow fp16 at 256; the result has the input's dtype. Equal to
    torch.nn.functional.layer_norm, which saves less for backward: the input and two numbers per token.
    Source: Ba et al. 2016, equation 4.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(dim=-1, keepdim=True)
    variance = (wide - mean).square().mean(dim=-1, keepdim=True)
    y = (wide - mean) * torch.rsqrt(variance + eps) * weight
    return (y if bias is None else y + bias).to(x.dtype)


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters: a scale unless scale=False, and a shift unless bias=False. Parameters: 2D (D, 0).

    Computed by torch's fused kernel. Saved for backward: the input, and mean and 1/standard deviation of every token.
    """

    def __init__(
        self, width: int, *, bias: bool = True, scale: bool = True, eps: float = 1e-5, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.width = (positive_int("width", width),)
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype)) if boolean("scale", scale) else None
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype)) if boolean("bias", bias) else None
        self.eps = non_negative_number("eps", eps)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return F.layer_norm(x, self.width, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · scale: LayerNorm without the mean and the shift. Parameters: D.

    Computed in fp32 whatever the input's dtype, since x² overflows fp16 at 256; the result has the input's dtype.
    Saved for backward, in fp32: x, the normalized x, and one number per token. Equal to torch.nn.functional.rms_norm.
    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(
        self, width: int, *, scale: bool = True, eps: float = 1e-5, device: Any = None, dtype: Any = None
    ):  # fmt: skip
        super().__init__()
        positive_int("width", width)
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype)) if boolean("scale", scale) else None
        self.eps = non_negative_number("eps", eps)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normalized = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (normalized if self.weight is None else normalized * self.weight).to(x.dtype)


def rope_tables(
    positions: int, head_dim: int, *, base: float = 10_000.0, device: Any = None, dtype: Any = None
) -> tuple[Float[Tensor, "positions h"], Float[Tensor, "positions h"]]:
    """Cosine and sine of every angle, each (positions, head_dim): position s rotates pair i by s · base^(−2i/h).

    Both halves of a row are equal. The angles are computed in fp32, then rounded to `dtype`. Left out: the rescaling
    that extends a trained model to longer sequences. Source: Su et al. 2021, equation 15.
    """
    positive_int("positions", positions)
    positive_number("base", base)
    if positive_int("head_dim", head_dim) % 2:
        raise ValueError(f"head_dim={head_dim} is odd: rotary positions rotate pairs of dimensions, so make it even.")
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    steps = torch.arange(positions, dtype=torch.float32, device=device)
    angles = torch.outer(steps, frequencies).repeat(1, 2)
    return angles.cos().to(dtype or torch.float32), angles.sin().to(dtype or torch.float32)


def rope(
    x: Float[Tensor, "... S h"], cosine: Float[Tensor, "... S h"], sine: Float[Tensor, "... S h"], *,
    pairs: str = "halves",
) -> Float[Tensor, "... S h"]:  # fmt: skip
    """Rotate every pair of dimensions by its angle; norms stay, and q·k then depends only on the distance of positions.

    The tables are the rows of `rope_tables` for the positions of x, one for each: `cosine[positions]`. The result has
    x's dtype. No parameters; only the tables are saved for backward. `pairs="halves"` rotates (x[i], x[i + h/2]), as
    weights on Hugging Face expect, and "neighbours" (x[2i], x[2i + 1]), as in the paper and in Meta's own weights. Both
    are equivalent up to the order of the rows of the query and key matrices (`reorder_pairs`).
    """
    if cosine.shape[-2:] != x.shape[-2:]:
        raise ValueError(
            f"x has {x.shape[-2]} positions of width {x.shape[-1]}, the tables {tuple(cosine.shape[-2:])}: give the "
            "rows of rope_tables(positions, head_dim) for the positions of x, and tables that are long enough."
        )
    if one_of("pairing of rotary positions", pairs, PAIRS) == "neighbours":
        half = x.shape[-1] // 2
        (even, odd), (cosine, sine) = (x[..., 0::2], x[..., 1::2]), (cosine[..., :half], sine[..., :half])
        turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
        return turned.flatten(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return (x * cosine + torch.cat([-second, first], dim=-1) * sine).to(x.dtype)


def reorder_pairs(weight: Float[Tensor, "rows ..."], *, head_dim: int, to: str) -> Float[Tensor, "rows ..."]:
    """Reorder the rows of a query or key matrix (or bias) for rotary positions that pair "halves" or "neighbours".

    The model then computes what it computed under the other pairing. `head_dim` rows belong to one head.
    """
    rows = weight.unflatten(0, (-1, head_dim))
    if one_of("pairing of rotary positions", to, PAIRS) == "halves":
        return torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1).flatten(0, 1)
    return torch.stack(rows.chunk(2, dim=1), dim=2).flatten(0, 2)


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


def module_or_none(name: str, module: nn.Module | None) -> nn.Module | None:
    """Return the given module; ValueError if it is neither a module nor None."""
    if module is not None and not isinstance(module, nn.Module):
        raise ValueError(f"{name} is {shown(module)}: give a module, such as RMSNorm(width), or None for none")
    return module


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
