"""Scaling laws fitted to runs: power laws and the loss law, each with an interval from bootstrap resamples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, TypeVar

import numpy as np

from cs336kit.predict.checks import fraction, positive_int, positive_number
from cs336kit.predict.scaling import balance

#: Give up after this many resamples that cannot be fitted, per resample that is wanted.
PATIENCE = 10

S = TypeVar("S")


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient · x ** exponent, with the fits to resamples of the data."""

    coefficient: float
    exponent: float
    #: (ln of the coefficient, exponent) of each resample; the coefficient of a steep fit overflows a float
    samples: tuple[tuple[float, float], ...]
    #: share of the resamples inside the intervals
    level: float = 0.8

    def at(self, x: float) -> float:
        """y at x; an extrapolation if x lies outside the data."""
        return exp(log(self.coefficient) + self.exponent * log(x))

    def interval(self, x: float) -> tuple[float, float]:
        """The interval of y at x: at a level of 0.8, a tenth of the resamples lie below it and a tenth above."""
        return _between_exp([start + e * log(x) for start, e in self.samples], self.level)

    @property
    def exponents(self) -> tuple[float, float]:
        """The interval of the exponent over the resamples."""
        return _between([exponent for _, exponent in self.samples], self.level)

    def __repr__(self) -> str:
        law = f"{self.coefficient:.3g} · x^{self.exponent:.3f}"
        if not self.samples:
            return law
        low, high = self.exponents
        return f"{law} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class Minimum:
    """The minimum of a valley: the best model size for a budget, and the loss there."""

    flops: float
    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class LossLaw:
    """L = E + A / N**alpha + B / D**beta, with the fits to resamples of the runs."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    samples: tuple[tuple[float, float, float, float, float], ...] = ()
    level: float = 0.8

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss of N parameters after D tokens."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    def optimum(self, flops: float) -> Minimum:
        """The lowest loss with 6·N·D = C. Source: Hoffmann et al. 2022, equation 4."""
        product_of_both = positive_number("flops", flops) / 6
        parameters = exp(balance(self.A, self.B, self.alpha, self.beta) + self.exponent * log(product_of_both))
        tokens = product_of_both / parameters
        return Minimum(flops, parameters, tokens, self.loss(parameters, tokens))

    @property
    def exponent(self) -> float:
        """The exponent of the optimal N as a power of C: β / (α + β)."""
        return self.beta / (self.alpha + self.beta)

    @property
    def exponents(self) -> tuple[float, float]:
        """The interval of `exponent` over the resamples."""
        return _between([s[4] / (s[3] + s[4]) for s in self.samples], self.level)

    def interval(self, flops: float) -> tuple[float, float]:
        """The interval of the optimal N over the resamples."""
        laws = [LossLaw(*sample) for sample in self.samples]
        product_of_both = log(positive_number("flops", flops) / 6)
        return _between_exp(
            [balance(law.A, law.B, law.alpha, law.beta) + law.exponent * product_of_both for law in laws], self.level
        )


def fit_power(
    x: Sequence[float], y: Sequence[float], *, resamples: int = 200, seed: int = 0, level: float = 0.8
) -> PowerLaw:
    """Fit a line to ln y over ln x by least squares, and one to each of `resamples` resamples of the points."""
    points = list(zip(positive("x", x), positive("y", y), strict=True))
    if len(set(x)) < 2:
        raise ValueError(f"a power law needs points at two different x or more, got {len(set(x))}: add points.")

    def again(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float] | None:
        return line(groups[0]) if len({x for x, _ in groups[0]}) > 1 else None

    start, exponent = line(points)
    return PowerLaw(exp(start), exponent, resampled([points], again, resamples, seed), fraction("level", level))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(ln of the coefficient, exponent) of the least-squares line through ln y over ln x."""
    logs = np.log(points)
    slope, start = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return float(start), float(slope)


def resampled(
    groups: Sequence[Sequence[Any]], fit: Callable[[Any], S | None], resamples: int, seed: int
) -> tuple[S, ...]:
    """`fit` of resamples, drawn with replacement within each group; those that cannot be fitted are redrawn."""
    draw, failed = np.random.default_rng(seed), 0
    found: list[S] = []
    while len(found) < positive_int("resamples", resamples):
        result = fit([[group[i] for i in draw.integers(len(group), size=len(group))] for group in groups])
        if result is not None:
            found.append(result)
        elif (failed := failed + 1) > PATIENCE * resamples:
            raise ValueError("hardly any resample of these points can be fitted: there are too few. Add points.")
    return tuple(found)


def positive(name: str, values: Sequence[float]) -> list[float]:
    """The values as floats; ValueError if one is not positive."""
    return [float(positive_number(f"every one of {name}", float(value))) for value in values]


def _between(values: Sequence[float], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _between_exp(logs: Sequence[float], level: float) -> tuple[float, float]:
    """The interval of numbers given by their logarithms; infinity where a float overflows."""
    with np.errstate(over="ignore"):
        low, high = np.exp(_between(logs, level))
    return float(low), float(high)
