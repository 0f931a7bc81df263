"""The two layers with a large table: a linear map and an embedding."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336kit.predict._common.checks import positive_int


class Linear(nn.Module):
    """y = x Wᵀ + b over the last axis; the weight is stored (outputs, inputs), as in torch.nn.Linear.

    Weights start normal with deviation 1/√inputs, cut off at three deviations, so that the variance of a unit input
    survives; biases start at 0. `bias=False` leaves the bias out. Parameters: inputs · outputs (+ outputs).
    Kept for backward: the input (and the weight, which is a parameter).
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True):
        super().__init__()
        positive_int("inputs", inputs)
        positive_int("outputs", outputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.initialize(deviation=1 / math.sqrt(inputs))

    def initialize(self, *, deviation: float):
        """Draw the weight again from a normal with this standard deviation, cut off at three; on meta, do nothing."""
        # By the inverse distribution function: torch's trunc_normal_ looks at the values it has drawn, and fake tensors
        # (a 70B model on a laptop) have none.
        if self.weight.is_meta:
            return
        edge = math.erf(3 / math.sqrt(2))
        with torch.no_grad():
            self.weight.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2) * deviation)
            self.weight.clamp_(-3 * deviation, 3 * deviation)

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} → {outputs}, bias={self.bias is not None}"


class Embedding(nn.Module):
    """A table of one vector per token: row `token` of a (tokens, width) matrix. A lookup, no FLOPs.

    Rows start normal with deviation 0.02 (Radford et al. 2018, section 4.1). Parameters: tokens · width.
    A token outside the table raises torch's IndexError.
    """

    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positive_int("tokens", tokens), positive_int("width", width)))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "..."]) -> Float[Tensor, "... width"]:
        # The same as self.weight[tokens], whose backward is much slower.
        return F.embedding(tokens, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} × {self.weight.shape[1]}"
