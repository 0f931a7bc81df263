"""Rotary positions: a query or key vector is turned by an angle that grows with its position."""

import torch
from jaxtyping import Float
from torch import Tensor

from cs336kit.predict._common.checks import positive_int, positive_number


def rope_tables(
    positions: int, head_dim: int, *, base: float = 10_000.0
) -> tuple[Float[Tensor, "positions h"], Float[Tensor, "positions h"]]:
    """Cosine and sine of every angle, each (positions, head_dim): position s turns pair i by s · base^(−2i/h).

    Dimension i is paired with dimension i + h/2, so both halves of a row are the same. Left out: the rescaling that
    stretches a trained model to longer sequences. Source: Su et al. 2021, equation 15.
    """
    positive_int("positions", positions)
    positive_number("base", base)
    if positive_int("head_dim", head_dim) % 2:
        raise ValueError(f"head_dim={head_dim} is odd: rotary positions turn pairs of dimensions, so make it even.")
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rope(
    x: Float[Tensor, "... S h"], cosine: Float[Tensor, "S h"], sine: Float[Tensor, "S h"]
) -> Float[Tensor, "... S h"]:
    """Turn every pair (x[i], x[i + h/2]) by its angle; lengths stay, and q·k then depends on the distance of positions only.

    The tables are the rows of `rope_tables` for the positions of x. The result has x's dtype. No parameters; nothing
    but the tables is kept for backward. Halves are paired, as in the weights that Hugging Face publishes; Meta's own
    pair neighbours (i, i + 1), which is the same up to an order of the rows of the query and key matrices.
    """
    first, second = x.chunk(2, dim=-1)
    return (x * cosine + torch.cat([-second, first], dim=-1) * sine).to(x.dtype)
