"""What a truncated normal distribution cuts off, and how wide the rest is."""

import math

from cs336kit.predict.checks import finite_number, finite_results, positive_number, shown

#: The smallest part of a distribution, and of its variance, that is exact to four digits in spite of rounding.
_LEAST = 1e-8


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
    mean, low, high = (finite_number(name, value) for name, value in (("mean", mean), ("a", a), ("b", b)))
    if not low < high:
        raise ValueError(f"a={shown(a)} must be below b={shown(b)}: give the lower bound first.")
    return (low - mean) / std, (high - mean) / std
