"""How large activations and gradients become in a deep net at initialization, and what a truncated normal cuts."""

import math
from numbers import Real

from cs336kit.predict._common.checks import finite_results, known, positive_int, positive_number, shown, steps

#: The smallest part of a distribution, and of its variance, that is exact to four digits in spite of rounding.
_LEAST = 1e-8


@finite_results()
def second_moments(
    start: float, *, layers: int, fan: int, weight_std: float, activation: str = "linear", slope: float = 0.0
) -> list[float]:
    """E[x²] at the input and after each of `layers` layers x ← activation(W x): layers + 1 numbers.

    Each layer multiplies by fan · weight_std² · c, with c = 1 (linear), ½ (relu), (1 + slope²)/2 (leaky_relu).
    Give fan_in for activations; for gradients give fan_out and the second moment at the top, and read from the top down.
    The mean over all draws of W is this at every width, if the weights are independent with a symmetric distribution
    of mean 0; a single draw differs, see `second_moment_spread`. Left out: biases.
    Errors: ValueError for unknown activations. Source: He et al. 2015, section 2.2; Hanin 2018
    (for the gradients of ReLU nets of finite width).
    """
    factor = positive_int("fan", fan) * positive_number("weight_std", weight_std) ** 2
    factor *= _moments(activation, slope)[0]
    start = positive_number("start", start)
    return [start * factor**layer for layer in range(steps("layers", layers) + 1)]


@finite_results()
def second_moment_spread(layers: int, *, width: int, activation: str = "linear", slope: float = 0.0) -> float:
    """Standard deviation over the draws of normal weights of the mean square after `layers` layers, over its mean.

    √((1 + (k − 1)/width)^layers − 1), with k = E[φ⁴]/E[φ²]² for a standard normal: 3 (linear) or 6 (relu). The mean of
    n nets has 1/√n of it as its relative standard error. Convention: a fixed input, all layers of the same width.
    Source: Hanin and Nica 2020, "Products of Many Large Random Matrices and Gradients" (there for the logarithm).
    """
    second, fourth = _moments(activation, slope)
    growth = 1 + (fourth / second**2 - 1) / positive_int("width", width)
    return math.sqrt(growth ** steps("layers", layers) - 1)


@finite_results()
def residual_second_moments(start: float, *, additions: int, branch: float = 1.0, scale: float = 1.0) -> list[float]:
    """E[x²] of a pre-norm residual stream after 0, 1, …, `additions` additions of branches with second moment `branch`.

    x ← x + scale · f(norm(x)): the norm fixes the branch's size, so each addition adds scale² · branch. A decoder of
    L blocks has 2L additions; scale = 1/√(2L) makes them add up to one branch. Convention: branches of mean 0,
    uncorrelated with the stream, as they are at initialization. Source: Radford et al. 2019 (GPT-2), section 2.3.
    """
    start, branch, scale = (
        positive_number(name, value) for name, value in (("start", start), ("branch", branch), ("scale", scale))
    )
    return [start + step * scale**2 * branch for step in range(steps("additions", additions) + 1)]


@finite_results()
def fraction_cut(*, std: float, a: float, b: float, mean: float = 0.0) -> float:
    """The part of a normal distribution that is outside [a, b], which a truncated normal has to draw again.

    a and b are values, not multiples of std. Errors: ValueError for std ≤ 0 or a ≥ b.
    """
    low, high = _bounds(std, a, b, mean)
    # erfc keeps its digits in the far tail, where 1 − erf would round to 0.
    return (math.erfc(-low / math.sqrt(2)) + math.erfc(high / math.sqrt(2))) / 2


@finite_results()
def truncated_std(*, std: float, a: float, b: float, mean: float = 0.0) -> float:
    """The standard deviation of a normal distribution after it is cut to [a, b]: 0.987·std for ±3·std.

    With z = (x − mean)/std, φ the density and Z the part that is kept, the variance is
    std² · (1 + (a φ(a) − b φ(b))/Z − ((φ(a) − φ(b))/Z)²), a and b in units of z. Errors: as `fraction_cut`, and for an interval
    of which rounding leaves nothing to compute with.
    Source: Johnson, Kotz, Balakrishnan 1994, "Continuous Univariate Distributions" 1, section 13.10.1.
    """
    low, high = _bounds(std, a, b, mean)
    std, kept = float(std), 1 - fraction_cut(std=std, a=a, b=b, mean=mean)
    at_low, at_high = (math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) for z in (low, high))
    variance = 0.0
    if kept > _LEAST:
        # Where the density is 0, so is the term, even if the bound is too far away to be expressed in standard deviations.
        below, above = (z * at if at else 0.0 for z, at in ((low, at_low), (high, at_high)))
        variance = 1 + (below - above) / kept - ((at_low - at_high) / kept) ** 2
    if variance < _LEAST:
        raise ValueError(
            f"[a, b] = [{shown(a)}, {shown(b)}] is too narrow or too far from the mean: at std={shown(std)} rounding would "
            "decide what is left. Give bounds that keep more of the distribution."
        )
    return std * math.sqrt(variance)


def _bounds(std: float, a: float, b: float, mean: float) -> tuple[float, float]:
    std = positive_number("std", std)
    mean, low, high = (_finite(name, value) for name, value in (("mean", mean), ("a", a), ("b", b)))
    if not low < high:
        raise ValueError(f"a={shown(a)} must be below b={shown(b)}: give the lower bound first.")
    return (low - mean) / std, (high - mean) / std


def _moments(activation: str, slope: float) -> tuple[float, float]:
    """E[φ(z)²] and E[φ(z)⁴] of a standard normal z."""
    slopes = {"linear": 1.0, "relu": 0.0, "leaky_relu": _finite("slope", slope)}
    negative = known("activation", activation, slopes)
    return (1 + negative**2) / 2, 3 * (1 + negative**4) / 2


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}.")
    return float(value)
