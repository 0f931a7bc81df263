"""Laws fitted to runs: power laws and the law of the loss, each with the interval in which its resamples lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, TypeVar

import numpy as np

from cs336kit.predict._common.checks import fraction, positive_int, positive_number
from cs336kit.predict.scaling import balance

#: Beyond so many resamples without a valley for each that has one, there is nothing to resample.
PATIENCE = 10

S = TypeVar("S")


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient · x ** exponent, and the same fitted to each resample of the data."""

    coefficient: float
    exponent: float
    #: (ln of the coefficient, exponent) of each resample; the coefficient of a steep one is beyond all floats
    samples: tuple[tuple[float, float], ...]
    #: share of the resamples inside the intervals
    level: float = 0.8

    def at(self, x: float) -> float:
        """y at x; as far from the data as x is."""
        return exp(log(self.coefficient) + self.exponent * log(x))

    def interval(self, x: float) -> tuple[float, float]:
        """The y between which the resamples lie at x, a tenth below and a tenth above at a level of 0.8."""
        return _between_exp([start + e * log(x) for start, e in self.samples], self.level)

    @property
    def exponents(self) -> tuple[float, float]:
        """The exponents between which the resamples lie."""
        return _between([exponent for _, exponent in self.samples], self.level)

    def __repr__(self) -> str:
        law = f"{self.coefficient:.3g} · x^{self.exponent:.3f}"
        if not self.samples:
            return law
        low, high = self.exponents
        return f"{law} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class Minimum:
    """The bottom of a valley: the best size for a budget, and the loss there."""

    flops: float
    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class LossLaw:
    """L = E + A / N**alpha + B / D**beta, and the same fitted to each resample."""

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
        """The least loss with 6·N·D = C. Source: Hoffmann et al. 2022, equation 4."""
        product_of_both = positive_number("flops", flops) / 6
        parameters = exp(balance(self.A, self.B, self.alpha, self.beta) + self.exponent * log(product_of_both))
        tokens = product_of_both / parameters
        return Minimum(flops, parameters, tokens, self.loss(parameters, tokens))

    @property
    def exponent(self) -> float:
        """Of N in C: β / (α + β)."""
        return self.beta / (self.alpha + self.beta)

    @property
    def exponents(self) -> tuple[float, float]:
        """The exponents of N in C between which the resamples lie."""
        return _between([s[4] / (s[3] + s[4]) for s in self.samples], self.level)

    def interval(self, flops: float) -> tuple[float, float]:
        """The best N between which the resamples lie."""
        laws = [LossLaw(*sample) for sample in self.samples]
        product_of_both = log(positive_number("flops", flops) / 6)
        return _between_exp(
            [balance(law.A, law.B, law.alpha, law.beta) + law.exponent * product_of_both for law in laws], self.level
        )


def fit_power(
    x: Sequence[float], y: Sequence[float], *, resamples: int = 200, seed: int = 0, level: float = 0.8
) -> PowerLaw:
    """The straight line through ln y over ln x by least squares, and through `resamples` resamples of its points."""
    points = list(zip(positive("x", x), positive("y", y), strict=True))
    if len(set(x)) < 2:
        raise ValueError(f"a power law takes points at two different x or more, got {len(set(x))}: add points.")

    def again(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float] | None:
        return line(groups[0]) if len({x for x, _ in groups[0]}) > 1 else None

    start, exponent = line(points)
    return PowerLaw(exp(start), exponent, resampled([points], again, resamples, seed), fraction("level", level))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(ln of the coefficient, exponent) of the straight line through ln y over ln x by least squares."""
    logs = np.log(points)
    slope, start = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return float(start), float(slope)


def resampled(
    groups: Sequence[Sequence[Any]], fit: Callable[[Any], S | None], resamples: int, seed: int
) -> tuple[S, ...]:
    """`fit` of resamples with replacement within each group; those that cannot be fitted are drawn anew."""
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
    """The values as floats; ValueError for one that is not positive."""
    return [float(positive_number(f"every one of {name}", float(value))) for value in values]


def _between(values: Sequence[float], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _between_exp(logs: Sequence[float], level: float) -> tuple[float, float]:
    """The numbers between which those with these logarithms lie; infinity beyond what a float holds."""
    with np.errstate(over="ignore"):
        low, high = np.exp(_between(logs, level))
    return float(low), float(high)
