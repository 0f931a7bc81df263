"""Scaling laws fitted to runs with the three approaches of Hoffmann et al. 2022."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp, isfinite, log
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from cs336kit.lm.laws import LossLaw, Minimum, PowerLaw, line, positive, resampled
from cs336kit.predict.checks import fraction, positive_int, positive_number

#: Where the Huber loss turns from quadratic to linear, in ln of the loss; Hoffmann et al. 2022, section D.2.
DELTA = 1e-3
#: In ln N. No model has 10^43 parameters or 10^−43: a parabola with its minimum out there is a straight line.
FARTHEST = 100


@runtime_checkable
class Finished(Protocol):
    """A finished run, such as those of `recorded_sweep`."""

    @property
    def parameters(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def flops(self) -> int: ...
    @property
    def budget(self) -> float: ...
    @property
    def loss(self) -> float: ...


R = TypeVar("R", bound=Finished)
S = TypeVar("S")


@dataclass(frozen=True)
class Optima:
    """The minima of several budgets, and the power laws through them: N and D as functions of C."""

    minima: tuple[Minimum, ...]
    parameters: PowerLaw
    tokens: PowerLaw


def valley(parameters: Sequence[float], losses: Sequence[float]) -> tuple[float, float] | None:
    """The minimum (N, loss) of the parabola through the losses over ln N; None if it is straight or opens downward.

    Needs three sizes or more.
    """
    sizes, values = positive("parameters", parameters), positive("losses", losses)
    if len(set(sizes)) < 3:
        raise ValueError(f"a parabola needs three sizes or more, got {len(set(sizes))}: train more models.")
    # Centered, so that the three columns of the fit are far from collinear.
    middle = float(np.mean(np.log(sizes)))
    places = np.log(sizes) - middle
    bend, slope, height = np.polyfit(places, values, 2)
    # Rounding makes a straight line bend a little, one way or the other.
    if bend * np.ptp(places) ** 2 <= 1e-9 * max(values):
        return None
    at = -slope / (2 * bend)
    if abs(middle + at) > FARTHEST:
        return None
    return exp(middle + at), float(height - bend * at**2)


def isoflop(runs: Sequence[R], *, resamples: int = 200, seed: int = 0, level: float = 0.8) -> Optima:
    """Approach 2: for each budget, the minimum of a parabola through the losses over ln N; then lines through the minima.

    Tokens at a minimum are interpolated between the nearest runs, so FLOPs are counted and not taken as 6·N·D. Runs are
    resampled within each budget, and the minimum of a resample may lie outside them. Source: Hoffmann et al. 2022, section 3.2.
    """
    checked = _checked(runs)
    budgets = sorted({run.budget for run in checked})
    groups = [[run for run in checked if run.budget == budget] for budget in budgets]
    if len(groups) < 2:
        raise ValueError(f"a line through the minima needs two budgets or more, got {len(groups)}: train more.")

    def minima(groups: Sequence[Sequence[R]]) -> tuple[Minimum, ...] | None:
        found = [_minimum(group) for group in groups]
        return None if None in found else tuple(m for m in found if m is not None)

    for group in groups:
        bottom, sizes = _minimum(group), [run.parameters for run in group]
        # A minimum outside the runs would be an extrapolation. Resamples may have one: the law itself comes from the data,
        # and if one side of a valley is open, an interval without such resamples covers the truth too rarely.
        if bottom is None or not min(sizes) <= bottom.parameters <= max(sizes):
            raise ValueError(
                f"the losses with {group[0].budget:.3g} FLOPs have no valley: train smaller or larger models, so that "
                "the best one lies between others."
            )
    return _optima(groups, minima, resamples, seed, level)


def envelope(runs: Sequence[Any], *, resamples: int = 200, seed: int = 0, level: float = 0.8, at: int = 24) -> Optima:
    """Approach 1: at each of `at` numbers of FLOPs, the run with the lowest training loss; then lines through these.

    Runs have a `curve` of (steps, training loss). The numbers of FLOPs range from the smallest to the largest budget. The
    runs are resampled. Source: Hoffmann et al. 2022, section 3.1.
    """
    checked = _checked(runs)
    first, last = (pick(run.budget for run in checked) for pick in (min, max))
    if first == last:
        raise ValueError("a line through the minima needs two budgets or more, got 1: train more.")
    places = np.geomspace(first, last, positive_int("at", at))

    # The loss of each run at each number of FLOPs; a curve counts to 5 % beyond its end, since steps are whole.
    table = []
    for run in checked:
        steps, losses = np.array(run.curve, dtype=float).T
        flops = steps * (run.flops / run.steps)
        inside = (flops[0] <= places) & (places <= 1.05 * run.flops)
        table.append((run, np.where(inside, np.interp(np.log(places), np.log(flops), losses), np.inf)))

    def minima(groups: Sequence[Sequence[tuple[Any, np.ndarray]]]) -> tuple[Minimum, ...] | None:
        losses = np.array([row for _, row in groups[0]])
        found = []
        for place, i in enumerate(losses.argmin(axis=0)):
            run, loss = groups[0][i][0], float(losses[i, place])
            if isfinite(loss):
                tokens = run.tokens * places[place] / run.flops
                found.append(Minimum(float(places[place]), run.parameters, tokens, loss))
        return tuple(found) if len({m.parameters for m in found}) > 1 else None

    return _optima([table], minima, resamples, seed, level)


def fit_loss(runs: Sequence[R], *, resamples: int = 50, seed: int = 0, level: float = 0.8) -> LossLaw:
    """Approach 3: fit L = E + A / N**α + B / D**β with the Huber loss of the difference of logarithms.

    Starts from the best points of a grid of 2,000; the runs are resampled. Five parameters take at least six runs of
    different size and length, and many more to mean anything.
    Source: Hoffmann et al. 2022, section 3.3 and appendix D.2; pitfalls in Besiroglu et al. 2024.
    """
    checked = _checked(runs)
    if (different := len({(run.parameters, run.tokens) for run in checked})) < 6:
        raise ValueError(f"five parameters need six different runs or more, got {different}: train more.")
    best = _polished(checked, _starts(checked))

    def again(groups: Sequence[Sequence[R]]) -> tuple[float, float, float, float, float] | None:
        if len({(run.parameters, run.tokens) for run in groups[0]}) < 6:
            return None
        return _numbers(groups[0], _polished(groups[0], [best]))

    if (numbers := _numbers(checked, best)) is None:
        raise ValueError(
            "the loss of these runs does not fall with both parameters and tokens: train more models, further apart."
        )
    samples = resampled([checked], again, resamples, seed)
    return LossLaw(*numbers, samples, fraction("level", level))


def _minimum(group: Sequence[R]) -> Minimum | None:
    if len({run.parameters for run in group}) < 3:
        return None
    bottom = valley([run.parameters for run in group], [run.loss for run in group])
    if bottom is None:
        return None
    size, loss = bottom
    sizes = {
        run.parameters: {log(other.tokens) for other in group if other.parameters == run.parameters} for run in group
    }
    # For runs of one size with different tokens, the geometric mean.
    pairs = sorted((log(size), sum(tokens) / len(tokens)) for size, tokens in sizes.items())
    (x0, y0), (x1, y1) = min(pairwise(pairs), key=lambda p: max(p[0][0] - log(size), log(size) - p[1][0]))
    tokens = exp(y0 + (log(size) - x0) * (y1 - y0) / (x1 - x0))
    return Minimum(float(np.mean([run.flops for run in group])), size, tokens, loss)


def _optima(
    groups: Sequence[Sequence[S]], minima: Callable[[Sequence[Sequence[S]]], tuple[Minimum, ...] | None],
    resamples: int, seed: int, level: float,
) -> Optima:  # fmt: skip
    """Lines through the minima of the data and of each resample."""
    best = minima(groups)
    if best is None:
        raise ValueError("one size is the best for every budget: train more models and more budgets.")
    samples = resampled(groups, minima, resamples, seed)

    def law(pick: str) -> PowerLaw:
        lines = [line([(m.flops, getattr(m, pick)) for m in minima]) for minima in (best, *samples)]
        start, exponent = lines[0]
        return PowerLaw(exp(start), exponent, tuple(lines[1:]), fraction("level", level))

    return Optima(best, law("parameters"), law("tokens"))


def _starts(runs: Sequence[R]) -> list[np.ndarray]:
    """The five points (ln A, ln B, ln E, α, β) of the grid that fit best."""
    lowest = log(min(run.loss for run in runs))
    grid = product(
        range(0, 21, 5), range(0, 21, 5), lowest + np.log([0.2, 0.4, 0.6, 0.8, 0.95]), *[(0.25, 0.5, 1, 1.5)] * 2
    )
    places = [np.array(place, dtype=float) for place in grid]
    objective = _objective(runs)
    return sorted(places, key=lambda place: objective(place)[0])[:5]


def _objective(runs: Sequence[R]) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The Huber loss at a point (ln A, ln B, ln E, α, β), in units of DELTA, and its gradient."""
    N, D, L = (np.log([getattr(run, name) for run in runs]) for name in ("parameters", "tokens", "loss"))
    one, none = np.ones_like(L), np.zeros_like(L)
    # The coefficients of the five numbers in each of the three terms: (terms, runs, numbers).
    takes = np.array(
        [
            np.stack([one, none, none, -N, none], axis=1),
            np.stack([none, one, none, none, -D], axis=1),
            np.stack([none, none, one, none, none], axis=1),
        ]
    )

    def objective(place: np.ndarray) -> tuple[float, np.ndarray]:
        terms = takes @ place
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        total = shares.sum(axis=0)
        off = top + np.log(total) - L
        near = np.abs(off) <= DELTA
        value = np.where(near, off**2 / (2 * DELTA), np.abs(off) - DELTA / 2).sum()
        slope = np.clip(off / DELTA, -1, 1) * shares / total
        return float(value), np.einsum("tr,trn->n", slope, takes)

    return objective


def _polished(runs: Sequence[R], starts: Sequence[np.ndarray]) -> np.ndarray:
    from scipy.optimize import minimize

    # The minimum is flat: with scipy's default tolerances, the last digits would decide where the search ends.
    to_the_end = {"ftol": 1e-15, "gtol": 1e-10}
    found = [minimize(_objective(runs), start, jac=True, method="L-BFGS-B", options=to_the_end) for start in starts]
    return np.asarray(min(found, key=lambda each: each.fun).x)


def _numbers(runs: Sequence[R], place: np.ndarray) -> tuple[float, float, float, float, float] | None:
    """(E, A, B, α, β); None if the loss does not fall with both N and D, so that no split of a budget is best."""
    a, b, e, alpha, beta = map(float, place)
    # A term that the fit does not need is left so small that no run could reveal it.
    sizes, texts, losses = ([getattr(run, name) for run in runs] for name in ("parameters", "tokens", "loss"))
    seen = min(a - alpha * log(min(sizes)), b - beta * log(min(texts))) > log(DELTA * min(losses))
    # Beyond 700, A or B would overflow a float.
    return (exp(e), exp(a), exp(b), alpha, beta) if seen and min(alpha, beta) > 0 and max(a, b) < 700 else None


def _checked(runs: Sequence[R]) -> list[R]:
    runs = list(runs)
    if not runs:
        raise ValueError("the sweep is empty: there is no run to fit.")
    for run in runs:
        for name in ("parameters", "tokens", "flops", "budget", "loss"):
            positive_number(name, getattr(run, name))
    return runs
