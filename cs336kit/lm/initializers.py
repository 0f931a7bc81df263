"""Initializers: fill a weight in place with random values of the right size.

Weights have torch's layout (fan_out, fan_in, …), as in `x @ weight.T`. For `x @ w`, pass `w.T`.
With the same generator, each function that torch.nn.init also has gives the same values, to the last bit.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor

from cs336kit.predict.checks import known, positive_int, positive_number
from cs336kit.predict.truncated_normal import fraction_cut

Random: TypeAlias = torch.Generator | None


def gain(nonlinearity: str, *, slope: float = 0.01) -> float:
    """The factor on the weights' std that compensates for the activation that follows: √2 for ReLU, which halves E[x²].

    tanh's 5/3 is a rule of thumb, not a derivation. `slope` is leaky ReLU's. Errors: ValueError for unknown names.
    """
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1 + slope**2)),
        "selu": 3 / 4,
    }
    return known("nonlinearity", nonlinearity, gains)


def fans(weight: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (fan_out, fan_in, …): inputs per output, outputs per input.

    Further dimensions (a convolution's kernel) multiply both. Errors: ValueError below two dimensions.
    """
    if weight.dim() < 2:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} has no fans: two dimensions or more are needed.")
    kernel = math.prod(weight.shape[2:])
    return weight.shape[1] * kernel, weight.shape[0] * kernel


@torch.no_grad()
def normal_(weight: Tensor, *, mean: float = 0.0, std: float = 1.0, generator: Random = None) -> Tensor:
    """Normal values of the given mean and standard deviation (not variance)."""
    return weight.normal_(mean, _std(std), generator=generator)


@torch.no_grad()
def uniform_(weight: Tensor, *, a: float = 0.0, b: float = 1.0, generator: Random = None) -> Tensor:
    """Uniform values in [a, b); their standard deviation is (b − a)/√12."""
    if not a <= b:
        raise ValueError(f"a={a!r} is above b={b!r}: give the lower bound first.")
    return weight.uniform_(a, b, generator=generator)


def lecun_normal_(weight: Tensor, *, generator: Random = None) -> Tensor:
    """Normal with variance 1/fan_in: a linear layer keeps E[x²]. Source: LeCun et al. 1998, "Efficient BackProp", 4.6."""
    return normal_(weight, std=1 / math.sqrt(fans(weight)[0]), generator=generator)


def xavier_normal_(weight: Tensor, *, gain: float = 1.0, generator: Random = None) -> Tensor:
    """Normal with variance 2/(fan_in + fan_out): a compromise between keeping E[x²] and keeping that of the gradient.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward networks", equation 12.
    """
    return normal_(weight, std=_xavier_std(weight, gain), generator=generator)


def xavier_uniform_(weight: Tensor, *, gain: float = 1.0, generator: Random = None) -> Tensor:
    """Uniform in ±√3·std, with the std of `xavier_normal_`. Source: Glorot and Bengio 2010, equation 16."""
    bound = math.sqrt(3.0) * _xavier_std(weight, gain)
    return uniform_(weight, a=-bound, b=bound, generator=generator)


def kaiming_normal_(
    weight: Tensor, *, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Random = None,
) -> Tensor:  # fmt: skip
    """Normal with variance gain²/fan: 2/fan_in for ReLU keeps E[x²] from layer to layer.

    `mode="fan_out"` keeps that of the gradient instead; `a` is leaky ReLU's slope, 0 for ReLU.
    Source: He et al. 2015, "Delving Deep into Rectifiers", equations 10 and 14.
    """
    return normal_(weight, std=_kaiming_std(weight, a, mode, nonlinearity), generator=generator)


def kaiming_uniform_(
    weight: Tensor, *, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Random = None,
) -> Tensor:  # fmt: skip
    """Uniform in ±√3·std, with the std of `kaiming_normal_`. torch's Linear uses a=√5, which is ±1/√fan_in."""
    bound = math.sqrt(3.0) * _kaiming_std(weight, a, mode, nonlinearity)
    return uniform_(weight, a=-bound, b=bound, generator=generator)


@torch.no_grad()
def trunc_normal_(
    weight: Tensor, *, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Random = None,
) -> Tensor:  # fmt: skip
    """Normal values, redrawn wherever they fall outside [a, b]: truncated, not clipped to the edge.

    a and b are values, *not* multiples of std: for ±3 standard deviations write a=-3 * std, b=3 * std. Truncation makes
    the standard deviation smaller, see `predict.truncated_std`. Equal to torch.nn.init.trunc_normal_ since torch 2.12;
    earlier versions inverted the distribution function instead, whose rounding put some values on the edge.
    Errors: ValueError if more than 70 % would be cut off.
    """
    cut = fraction_cut(std=_std(std), a=a, b=b, mean=mean)
    if cut > 0.7:
        raise ValueError(
            f"a={a!r} and b={b!r} cut {cut:.1%} of a normal with mean={mean!r} and std={std!r}: widen them."
        )
    low, high = (torch.tensor(bound, dtype=weight.dtype).item() for bound in (a, b))
    values = weight.normal_(mean, std, generator=generator)
    while (outside := (values < low) | (values > high)).any():
        again = torch.empty_like(values).normal_(mean, std, generator=generator)
        values = torch.where(outside, again, values)
    return weight.copy_(values)


def residual_normal_(weight: Tensor, *, layers: int, std: float = 0.02, generator: Random = None) -> Tensor:
    """Normal with std/√(2·layers), for the two matrices of each block that write into the residual stream.

    2·layers independent additions then have together the variance of a single one without the factor.
    Source: Radford et al. 2019 (GPT-2), section 2.3.
    """
    return normal_(weight, std=_std(std) / math.sqrt(2 * positive_int("layers", layers)), generator=generator)


def _std(std: float) -> float:
    return std if std == 0 and not isinstance(std, bool) else positive_number("std", std)


def _xavier_std(weight: Tensor, gain: float) -> float:
    return gain * math.sqrt(2.0 / float(sum(fans(weight))))


def _kaiming_std(weight: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan = known("mode", mode, dict(zip(("fan_in", "fan_out"), fans(weight), strict=True)))
    return gain(nonlinearity, slope=a) / math.sqrt(fan)
