"""The layers of a decoder: linear, embedding, norms, rotary positions.

Every layer takes `device` and `dtype` for its parameters, as torch's own layers do.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm._shapes import Float, Int
from cs336kit.predict.checks import (
    boolean,
    non_negative_number,
    one_of,
    positive_int,
    positive_number,
    shown,
)

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


def module_or_none(name: str, module: nn.Module | None) -> nn.Module | None:
    """Return the given module; ValueError if it is neither a module nor None."""
    if module is not None and not isinstance(module, nn.Module):
        raise ValueError(f"{name} is {shown(module)}: give a module, such as RMSNorm(width), or None for none")
    return module
