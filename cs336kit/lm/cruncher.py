"""The deep linear model of the lecture: simple enough that every cost can be said in one line."""

import math

import torch
from torch import Tensor, nn

from cs336kit.predict._common.checks import positive_int


class Cruncher(nn.Module):
    """`layers` square linear layers, one after the other, then one head of width 1.

    Shapes: (B, D) → (B,), or (B, 1) with `squeeze=False`.
    Parameters: L·D² + D, and with `bias=True` another L·D + 1.
    Weights start as N(0, 1/D), so that the size of the signal survives each layer; biases start at 0.
    There is no non-linearity: the model can only express a linear map, and all its FLOPs are matmuls.
    """

    def __init__(self, d_model: int, layers: int, *, bias: bool = False, squeeze: bool = True):
        super().__init__()
        positive_int("d_model", d_model)
        positive_int("layers", layers)
        self.layers = nn.ModuleList(nn.Linear(d_model, d_model, bias=bias) for _ in range(layers))
        self.final = nn.Linear(d_model, 1, bias=bias)
        self.squeeze = squeeze
        for linear in (*self.layers, self.final):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(d_model))
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.final(x)
        return torch.squeeze(x, -1) if self.squeeze else x
