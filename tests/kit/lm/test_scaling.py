from dataclasses import replace
from math import exp, inf, log
from types import SimpleNamespace

import numpy as np
import pytest
from few import one_in
from scipy.optimize import approx_fprime
from scipy.special import huber

from cs336kit import lm, predict
from cs336kit.lm import laws, scaling

pytestmark = pytest.mark.torch

LAWS = {law.name: law for law in predict.scaling_laws()}
BESIROGLU = lm.LossLaw(*(LAWS["besiroglu"].numbers[name]["value"] for name in ("E", "A", "B", "alpha", "beta")))


def runs(law, *, budgets=(1e18, 1e19, 1e20, 1e21), sizes=9, noise=0.0, seed=0):
    """Runs that follow a law exactly, sizes around the best one, C = 6·N·D."""
    draw, found = np.random.default_rng(seed), []
    for budget in budgets:
        for factor in np.geomspace(0.2, 5, sizes):
            N = law.optimum(budget).parameters * factor
            D = budget / (6 * N)
            loss = law.loss(N, D) * exp(noise * draw.standard_normal())
            run = {"parameters": N, "tokens": D, "flops": budget, "budget": budget, "loss": loss, "steps": 100}
            curve = [(step, law.loss(N, D * step / 100)) for step in (1, 5, 10, 30, 50, 70, 100)]
            found.append(SimpleNamespace(**run, curve=curve))
    return found


def test_a_power_law_comes_back():
    x = np.geomspace(1, 1e6, 12)
    law = lm.fit_power(x, 3 * x**0.73)
    assert (law.coefficient, law.exponent) == pytest.approx((3, 0.73))
    assert (
        len(law.samples) == 200
        and law.exponents == pytest.approx((0.73, 0.73))
        and law.at(1e9) == pytest.approx(3 * 1e9**0.73)
    )


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    x, held = np.geomspace(1, 1e3, 30), 0
    for seed in range(40):
        y = 2 * x**0.5 * np.exp(0.2 * np.random.default_rng(seed).standard_normal(len(x)))
        low, high = lm.fit_power(x, y, resamples=80, seed=seed).exponents
        held += low < 0.5 < high
    # 80 % of 40 are 32; a fair interval leaves this range with a chance below one in five hundred
    assert 24 <= held <= 39


def test_a_wider_level_is_a_wider_interval():
    x = np.geomspace(1, 100, 10)
    y = x**0.5 * np.exp(0.1 * np.random.default_rng(0).standard_normal(10))
    (a, b), (c, d) = (lm.fit_power(x, y, level=level).interval(1e4) for level in (0.5, 0.95))
    assert c < a < b < d


def test_the_bottom_of_a_parabola():
    sizes = np.geomspace(10, 1000, 5)
    assert lm.valley(sizes, 2 + 0.3 * np.log(sizes / 77) ** 2) == pytest.approx((77, 2))
    assert lm.valley(sizes, 2 - 0.3 * np.log(sizes / 77) ** 2) is None
    assert lm.valley([1, 2, 4], [2, 2, 2]) is None and lm.valley(sizes, 2 + 0.1 * np.log(sizes)) is None
    assert lm.valley(sizes, 2 + 1e-4 * np.log(sizes / 77) ** 2) == pytest.approx((77, 2))


def test_isoflop_finds_the_exponents_of_a_known_law():
    # With α = β valleys are mirror images, so the parabola's bottom is the true one.
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    found = lm.isoflop(runs(law), resamples=20)
    assert found.parameters.exponent == pytest.approx(0.5, abs=1e-3)
    assert found.tokens.exponent == pytest.approx(0.5, abs=1e-3)
    for minimum in found.minima:
        assert minimum.parameters == pytest.approx(law.optimum(minimum.flops).parameters, rel=1e-3)
        assert 6 * minimum.parameters * minimum.tokens == pytest.approx(minimum.flops, rel=1e-3)


def test_noise_widens_the_interval_around_the_truth():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    found = lm.isoflop(runs(law, noise=0.01), resamples=50)
    low, high = found.parameters.exponents
    assert low < 0.5 < high and high - low > 0.01
    # The law itself is the line through the minima of all runs, whatever the resamples are.
    for pick in ("parameters", "tokens"):
        points = np.log([(m.flops, getattr(m, pick)) for m in found.minima])
        assert getattr(found, pick).exponent == pytest.approx(np.polyfit(*points.T, 1)[0])


@pytest.mark.parametrize("law", [BESIROGLU, lm.LossLaw(1.0, 20, 300, 0.3, 0.4)])
def test_the_loss_law_comes_back(law):
    found = lm.fit_loss(runs(law), resamples=3)
    for name in ("E", "alpha", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=0.02)
    assert found.exponent == pytest.approx(law.exponent, abs=0.005)
    for flops in (1e20, 1e24):
        assert found.optimum(flops).parameters == pytest.approx(law.optimum(flops).parameters, rel=0.1)


def test_the_optimum_is_that_of_the_published_law():
    published = {one.law.name: one for one in predict.compute_optimal(flops=1e23).laws}["besiroglu"]
    here = BESIROGLU.optimum(1e23)
    assert (here.parameters, here.tokens) == pytest.approx((published.parameters, published.tokens))
    at = [BESIROGLU.loss(here.parameters * f, here.tokens / f) for f in (0.9, 1, 1.1)]
    assert min(at) == at[1]


def test_the_envelope_of_curves():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    # These curves lose nothing by ending early, so the envelope is the law's own, up to the grid of sizes.
    found = lm.envelope(runs(law, sizes=25), resamples=5)
    assert len(found.parameters.samples) == len(found.tokens.samples) == 5
    assert found.parameters.exponent == pytest.approx(0.5, abs=0.03)


def test_published_laws_disagree_as_their_tables_say():
    assert (
        LAWS["kaplan"].exponent > 0.7 > 0.55 > LAWS["besiroglu"].exponent == pytest.approx(BESIROGLU.exponent, abs=0.01)
    )


def one(**change):
    return SimpleNamespace(**{"parameters": 10, "tokens": 20, "flops": 1200, "budget": 1e3, "loss": 2.0} | change)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: lm.isoflop([]), "the sweep is empty"),
        (lambda: lm.fit_loss([]), "the sweep is empty"),
        (lambda: lm.envelope([]), "the sweep is empty"),
        (lambda: lm.isoflop([one(loss=-1)]), "loss must be a finite number above 0"),
        (lambda: lm.fit_loss([one(loss=float("nan"))]), "loss must be a finite number above 0"),
        (lambda: lm.isoflop([one(parameters=n) for n in (1, 2, 4)]), "two budgets or more, got 1"),
        (lambda: lm.fit_loss([one(), one(tokens=3)]), "six different runs or more, got 2"),
        (lambda: lm.valley([1, 2], [3, 2]), "three sizes or more, got 2"),
        (lambda: lm.valley([1, 2, 4], [3, -2, 3]), "every one of losses must be a finite number above 0"),
        (lambda: lm.envelope([one(curve=[])]), "a line through the minima needs two budgets or more, got 1"),
        (lambda: lm.fit_power([1, 1], [2, 3]), "two different x or more, got 1"),
        (lambda: lm.fit_power([1, 2], [2, 0]), "every one of y must be a finite number above 0"),
        (lambda: lm.fit_power([1, 2, 3], [2, 3]), "argument 2 is shorter"),
        (lambda: lm.fit_power([1, 2], [2, 3], level=80), "level must be a fraction"),
        (lambda: BESIROGLU.optimum(-1), "flops must be a finite number above 0"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_a_slope_is_no_valley():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    beyond = [run for run in runs(law) if run.budget < 1e20]
    for run in beyond:
        run.loss = 5 - 0.1 * log(run.parameters) ** 2 / 100
    with pytest.raises(ValueError, match="have no valley: train smaller or larger models"):
        lm.isoflop(beyond)


def test_intervals_are_quantiles_of_the_resamples():
    law = lm.PowerLaw(3.0, 2.0, samples=tuple((log(c), c / 10) for c in range(1, 12)))
    # Of eleven the second and the tenth: with the coefficients 2 and 10, and the exponents 0.2 and 1.
    assert law.exponents == pytest.approx((0.2, 1.0))
    assert law.interval(100) == pytest.approx((2 * 100**0.2, 10 * 100))
    assert law.interval(1) == pytest.approx((2, 10))
    assert repr(law) == "3 · x^2.000 (0.200 to 1.000)"
    sure = lm.PowerLaw(3.0, 2.0, samples=law.samples, level=1.0)
    assert sure.exponents == pytest.approx((0.1, 1.1))


def test_the_intervals_of_a_loss_law():
    samples = tuple((1.0, 20.0 * k, 20.0 * k, 1.0, float(k)) for k in range(1, 6))
    law = lm.LossLaw(1.0, 20.0, 20.0, 1.0, 1.0, samples, level=0.5)
    # β / (α + β) of the second and the fourth.
    assert law.exponents == pytest.approx((2 / 3, 4 / 5))
    # The best N of each law, by trying many.
    sizes = np.geomspace(0.1, 1e4, 200_001)
    best = [sizes[np.argmin(A / sizes**alpha + B / (100 / sizes) ** beta)] for _, A, B, alpha, beta in samples]
    assert law.interval(600) == pytest.approx(np.quantile(best, [0.25, 0.75]), rel=1e-3)


def test_two_points_are_a_line_and_a_resample_of_one_is_drawn_again():
    law = lm.fit_power([1, 2], [3, 12], resamples=20)
    assert (law.coefficient, law.exponent) == pytest.approx((3, 2))
    assert len(law.samples) == 20 and np.allclose(law.samples, [log(3), 2])


def test_tokens_at_the_bottom_lie_between_the_runs_beside_it():
    tokens = {10: 9e6, 20: 3e5, 40: 12e4, 80: 27e4}

    def group(budget, bottom):
        return [
            one(parameters=n, tokens=d, budget=budget, flops=budget * f, loss=2 + log(n / bottom) ** 2)
            for (n, d), f in zip(tokens.items(), (0.97, 0.99, 1.01, 1.07), strict=True)
        ]

    # Halfway between 40 and 80, and between 20 and 40, on a scale of logarithms.
    runs = group(1e4, 40 * 2**0.5) + group(1e5, 20 * 2**0.5)
    first, second = lm.isoflop(runs, resamples=1).minima
    assert (first.parameters, first.loss, first.flops) == pytest.approx((40 * 2**0.5, 2, 1.01e4))
    assert first.tokens == pytest.approx((12e4 * 27e4) ** 0.5)
    assert second.tokens == pytest.approx((3e5 * 12e4) ** 0.5)


def test_a_budget_with_two_sizes_has_no_valley():
    runs = [one(parameters=n, budget=b) for b in (1e3, 1e4) for n in ((1, 2, 4) if b == 1e3 else (1, 2))]
    with pytest.raises(ValueError, match=r"the losses with 1e\+0[34] FLOPs have no valley"):
        lm.isoflop(runs)


def test_the_envelope_takes_the_lowest_curve_at_each_place():
    small = {"parameters": 10, "tokens": 500, "budget": 1050.0, "flops": 1000.0, "steps": 10}
    # It has a lower loss, and ends long before the first place.
    short = {"parameters": 5, "tokens": 300, "budget": 1050.0, "flops": 600.0, "steps": 10}
    large = {"parameters": 100, "tokens": 4000, "budget": 105000.0, "flops": 105000.0, "steps": 10}
    runs = [
        one(**small, curve=[(1, 3.0), (10, 2.0)]), one(**short, curve=[(1, 3.0), (10, 0.5)]),
        one(**large, curve=[(1, 2.5), (10, 1.0)]),
    ]  # fmt: skip
    minima = lm.envelope(runs, resamples=1, at=5).minima
    # The second place, 10**0.5 times the first, is beyond the small runs and before the first step of the large one.
    assert [m.parameters for m in minima] == [10, 100, 100, 100]
    assert [m.flops for m in minima] == pytest.approx([1050, 10500, 10500 * 10**0.5, 105000])
    assert [m.loss for m in minima] == pytest.approx([2.0, 2.5, 1.75, 1.0])
    assert [m.tokens for m in minima] == pytest.approx([525, 400, 400 * 10**0.5, 4000])


def test_a_curve_counts_from_its_first_step_on():
    long = {"budget": 1e5, "flops": 1e5}
    runs = [
        one(parameters=10, budget=1e3, flops=1e3, steps=10, curve=[(1, 3.0), (10, 2.0)]),
        one(parameters=100, **long, steps=100, curve=[(1, 1.5), (100, 1.0)]),
        one(parameters=1000, **long, steps=10, curve=[(1, 2.0), (10, 0.5)]),
    ]
    assert [m.parameters for m in lm.envelope(runs, resamples=1, at=2).minima] == [100, 1000]


def test_one_size_that_is_always_the_best_has_no_line():
    runs = [one(budget=b, flops=b, steps=10, curve=[(1, 3.0), (10, 2.0)]) for b in (1e3, 2e3)]
    with pytest.raises(ValueError, match="one size is the best for every budget"):
        lm.envelope(runs)


def test_a_fit_starts_from_the_best_five_of_two_thousand_places(monkeypatch):
    """The grid of Hoffmann et al. 2022, appendix D.2, but with E below the lowest loss."""
    seen = []
    monkeypatch.setattr(
        scaling, "_objective", lambda runs: lambda place: (seen.append(place) or abs(place[0] - 15), None)
    )
    starts = scaling._starts([SimpleNamespace(loss=loss) for loss in (3.0, 2.0)])
    A, B, E, alpha, beta = (sorted({*column}) for column in np.array(seen).T.tolist())
    assert len(seen) == len({tuple(place) for place in seen}) == 2000
    assert A == B == [0, 5, 10, 15, 20] and alpha == beta == [0.25, 0.5, 1, 1.5]
    assert np.exp(E) == pytest.approx([0.4, 0.8, 1.2, 1.6, 1.9])
    assert len(starts) == 5 and {place[0] for place in starts} == {15}


def test_the_objective_is_hubers_loss_and_its_gradient():
    law = lm.LossLaw(1.7, 400, 500, 0.35, 0.3)
    data = runs(law, noise=0.001)
    objective = scaling._objective(data)
    for place in ([log(400), log(500), log(1.7), 0.35, 0.3], [5.0, 6.0, 0.4, 0.3, 0.4]):
        a, b, e, alpha, beta = place
        off = [
            log(exp(a - alpha * log(r.parameters)) + exp(b - beta * log(r.tokens)) + exp(e)) - log(r.loss) for r in data
        ]
        value, gradient = objective(np.array(place))
        assert value == pytest.approx(huber(1e-3, np.array(off)).sum() / 1e-3)
        # Where the first place is looked at, some runs are nearer than DELTA and some are not.
        assert gradient == pytest.approx(approx_fprime(place, lambda x: objective(x)[0], 1e-8), rel=1e-3, abs=1e-3)
    assert 0 < sum(abs(r.loss / law.loss(r.parameters, r.tokens) - 1) < 1e-3 for r in data) < len(data)


def test_the_best_of_several_starts_is_taken():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    true = np.array([log(400), log(400), log(1.7), 0.35, 0.35])
    # From far off, where one of the terms counts for nothing, no step leads back.
    lost = np.array([-300.0, log(400), log(1.7), 0.35, 0.35])
    for starts in ([true, lost], [lost, true]):
        assert scaling._polished(runs(law), starts) == pytest.approx(true, rel=1e-3)


@pytest.mark.proof
def test_another_rounding_of_the_losses_is_no_other_law():
    """A bottom that is flat is gone down to its end: else the last digits, which processors compute unlike, choose a place."""
    recorded = lm.recorded_sweep().runs
    draw = np.random.default_rng(0)
    moved = [replace(run, loss=run.loss * (1 + 1e-14 * draw.uniform(-1, 1))) for run in recorded]
    one, other = (lm.fit_loss(runs) for runs in (recorded, moved))
    assert (one.alpha, one.beta) == pytest.approx((other.alpha, other.beta), abs=1e-6)
    for mine, theirs in zip(one.samples, other.samples, strict=True):
        assert mine[3:] == pytest.approx(theirs[3:], abs=1e-4)


def test_resamples_are_as_large_as_their_groups_and_drawn_from_all_of_them():
    drawn = laws.resampled([[1, 2, 3], [7]], lambda groups: groups, 50, 0)
    assert {(len(first), len(second)) for first, second in drawn} == {(3, 1)} and len(drawn) == 50
    assert {each for first, _ in drawn for each in first} == {1, 2, 3}


def test_after_ten_failures_for_each_resample_there_is_a_sentence():
    tried = []
    with pytest.raises(ValueError, match="hardly any resample of these points can be fitted"):
        laws.resampled([[1]], tried.append, 2, 0)
    assert len(tried) == 21


def test_a_law_of_losses_takes_six_different_runs_and_resamples_that_have_as_many():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    six = runs(law, budgets=(1e18, 1e20), sizes=3)
    with pytest.raises(ValueError, match="five parameters need six different runs or more, got 5"):
        lm.fit_loss([*six[:5], six[0]])
    # Of six runs one resample in 65 has all.
    with pytest.raises(ValueError, match="hardly any resample of these points can be fitted"):
        lm.fit_loss(six, resamples=1)
    assert len(lm.fit_loss(runs(law, sizes=3), resamples=2).samples) == 2


def test_a_law_without_samples_is_shown_without_an_interval():
    assert repr(lm.PowerLaw(1.0, 0.5, ())) == "1 · x^0.500"
    assert repr(lm.PowerLaw(1.0, 0.5, ((1.0, 0.25), (1.0, 0.25)))) == "1 · x^0.500 (0.250 to 0.250)"


def test_a_bottom_beyond_all_sizes_is_no_valley():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    small = [run for run in runs(law) if run.parameters < 0.6 * law.optimum(run.budget).parameters]
    with pytest.raises(ValueError, match="so that the best one lies between others"):
        lm.isoflop(small)


def test_runs_of_one_size_may_have_read_different_tokens():
    sizes = {10: (9e6,), 20: (3e5,), 40: (4e4, 36e4), 80: (27e4,)}
    found = [
        one(parameters=n, tokens=d, budget=budget, flops=budget, loss=2 + log(n / 40 / 2**0.5) ** 2)
        for budget in (1e4, 1e5) for n, each in sizes.items() for d in each
    ]  # fmt: skip
    # 12e4 for those of 40, and halfway to 27e4 on a scale of logarithms.
    assert lm.isoflop(found, resamples=1).minima[0].tokens == pytest.approx((12e4 * 27e4) ** 0.5)


def test_tokens_are_read_from_the_runs_on_both_sides_of_the_bottom():
    # Unevenly spaced, 30 is nearer to the middle of 10 and 20 than to that of 20 and 1000, and lies between the latter.
    tokens, bottom = {10: 9e6, 20: 3e5, 1000: 5e3, 2000: 1e3}, 30

    found = [
        one(parameters=n, tokens=d, budget=budget, flops=budget, loss=2 + log(n / bottom) ** 2)
        for budget in (1e4, 1e5) for n, d in tokens.items()
    ]  # fmt: skip
    at = exp(np.interp(log(bottom), np.log(list(tokens)), np.log(list(tokens.values()))))
    assert lm.isoflop(found, resamples=1).minima[0].tokens == pytest.approx(at)


@pytest.mark.parametrize("apart", [1e-3, 1e-4, 1e-6, 1e-8])
def test_a_valley_that_is_nearly_straight_has_its_bottom_nowhere(apart):
    assert lm.valley([1, 2, 4], [3, 2, 1 + apart]) is None


@pytest.mark.proof
def test_many_resamples_of_the_recorded_sweep():
    # One in some hundred has hardly a bend, and its bottom lies farther away than a float reaches.
    law = lm.isoflop(lm.recorded_sweep().runs, resamples=3000, seed=1).parameters
    low, high = law.interval(3e23)
    assert len(law.samples) == 3000 and 1e3 < low < law.at(3e23) < high < 1e20


def test_a_resample_may_have_its_bottom_beyond_all_sizes():
    # As steep as this no line is whose bottoms lie between the sizes. Without such resamples the interval is too narrow.
    slices = list(lm.recorded_sweep().slices().values())
    smallest, largest = (pick(run.parameters for run in slices[i]) for i, pick in ((0, min), (-1, max)))
    steepest = log(largest / smallest) / log(3e11 / 1e10)
    samples = lm.isoflop([run for runs in slices for run in runs]).parameters.samples
    assert any(exponent > steepest for _, exponent in samples)


def test_a_resample_may_be_so_steep_that_no_float_holds_its_coefficient():
    steep = lm.PowerLaw(1.0, 1.0, ((-5000.0, 90.0), (-5000.0, 90.0)))
    assert steep.interval(exp(56)) == pytest.approx((exp(40), exp(40)))
    assert steep.interval(exp(40)) == (0.0, 0.0) and steep.interval(exp(70)) == (inf, inf)


def noisy(seed):
    """Ten runs of two budgets, as uncertain as those that a law of five numbers should not be fitted to."""
    law, draw, found = lm.LossLaw(1.7, 400, 400, 0.35, 0.35), np.random.default_rng(seed), []
    for budget in (1e18, 1e19):
        for N in law.optimum(budget).parameters * np.geomspace(0.3, 3, 5):
            D = budget / 6 / N
            found.append(one(parameters=N, tokens=D, budget=budget, loss=law.loss(N, D) * exp(draw.normal(0, 0.05))))
    return found


@pytest.mark.parametrize("seed", one_in(4, (0, 1, 3, 4)))  # with 2 the best fit is a wall, B and β without bound
def test_a_resample_whose_loss_rises_is_drawn_again(seed):
    law = lm.fit_loss(noisy(seed), resamples=15, seed=seed)
    assert len(law.samples) == 15 and all(min(alpha, beta) > 0 for *_, alpha, beta in law.samples)
    low, high = law.interval(1e24)
    assert 0 <= low <= high


def test_a_loss_that_rises_with_the_parameters_is_no_law():
    law = lm.LossLaw(1.7, 400, 400, 0.35, 0.35)
    rising = runs(law)
    for run in rising:
        run.loss = 1 + 1e-3 * run.parameters**0.1 + 400 / run.tokens**0.35
    with pytest.raises(ValueError, match="does not fall with both parameters and tokens: train more models"):
        lm.fit_loss(rising, resamples=2)
