"""The fast rounding against ml_dtypes, numpy and the slow rounding of `predict`."""

import math

import numpy
import pytest

from cs336kit import measure, predict
from tests.kit.predict.test_number_format import ML_DTYPES, assert_same

pytestmark = pytest.mark.torch


def values(count):
    patterns = numpy.random.default_rng(3).integers(0, 2**32, count, dtype=numpy.uint32).view(numpy.float32)
    return numpy.concatenate([patterns[~numpy.isnan(patterns)], numpy.float32([0.0, -0.0, numpy.inf, -numpy.inf])])


@pytest.mark.parametrize("name", sorted(ML_DTYPES.keys() - {"e8m0"}))
def test_a_million_values_equal_ml_dtypes(name):
    x = values(1_000_000)
    overflow = {"fp8_e4m3": "nan", "bf16": "inf", "fp16": "inf", "fp8_e5m2": "inf"}.get(name, "saturate")
    ours = measure.rounded(x, predict.FORMATS[name], overflow=overflow)
    with numpy.errstate(over="ignore", invalid="ignore"):
        theirs = x.astype(ML_DTYPES[name]).astype(numpy.float64)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp8_e5m2"])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
def test_the_two_ways_of_rounding_agree(name, mode):
    number_format, x = predict.FORMATS[name], values(2000)
    nearest = [number_format.round(v, overflow="saturate") for v in x.tolist()]
    # Where the nearest value is farther from zero, the one below it is next to it in the list of codes.
    cut = [number_format.decode(number_format.encode(y) - (abs(y) > abs(v))) for v, y in zip(x, nearest, strict=True)]
    assert measure.rounded(x, number_format, mode=mode).tolist() == (cut if mode == "toward_zero" else nearest)


@pytest.mark.parametrize(("name", "overflow"), [("fp16", "inf"), ("fp16", "nan"), ("fp8_e4m3", "nan")])
def test_what_is_cut_towards_zero_does_not_overflow(name, overflow):
    number_format, x = predict.FORMATS[name], [70000.0, -70000.0, 1.1, -numpy.inf]
    ours = measure.rounded(x, number_format, mode="toward_zero", overflow=overflow)
    # An infinity is none of the values that are cut.
    expected = [number_format.max, -number_format.max, 1.0 if name == "fp8_e4m3" else 1.099609375]
    numpy.testing.assert_array_equal(ours, [*expected, math.nan if overflow == "nan" else -math.inf])


def test_stochastic_rounding_keeps_the_mean():
    bf16 = predict.FORMATS["bf16"]
    x = 1 + bf16.eps / 8
    draws = measure.rounded(numpy.full(100_000, x), bf16, mode="stochastic", seed=0)
    assert set(draws) == {1.0, 1 + bf16.eps}
    assert draws.mean() == pytest.approx(x, abs=bf16.eps * 0.005)
    assert (draws == measure.rounded(numpy.full(100_000, x), bf16, mode="stochastic", seed=0)).all()


def test_the_noise_of_stochastic_rounding_follows_the_gap():
    # Small updates to a weight of 1: its gap doubles at 2, so an update passes half as often and jumps twice as far.
    bf16, runs, update = predict.FORMATS["bf16"], numpy.ones(10_000), 0.001
    below, above = ((gap := bf16.spacing(x)) ** 2 * (p := update / gap) * (1 - p) for x in (1.0, 2.0))
    spread = {}
    for n in range(1, 2001):
        runs = measure.rounded(runs + update, bf16, mode="stochastic", seed=n)
        spread[n] = runs.std()
    # A deviation of 10,000 draws is itself uncertain by 0.7 %.
    assert spread[500] == pytest.approx((500 * below) ** 0.5, rel=0.02)
    assert spread[2000] == pytest.approx((1000 * below + 1000 * above) ** 0.5, rel=0.02)
    assert spread[2000] > 1.2 * (2000 * below) ** 0.5


def test_a_push_down_from_a_power_of_two_arrives_and_a_push_up_does_not():
    bf16 = predict.FORMATS["bf16"]
    assert measure.rounded([1 + 0.003, 1 - 0.003], bf16).tolist() == [1.0, 1 - bf16.eps / 2]


def test_formats_of_32_bits_are_rounded_too():
    x = numpy.float64([0.1, 1 / 3, -2e-40, 3.0])
    assert (measure.rounded(x, predict.FORMATS["fp32"]) == x.astype(numpy.float32)).all()


def test_bad_input_is_refused():
    bf16 = predict.FORMATS["bf16"]
    with pytest.raises(ValueError, match="give it seed=0"):
        measure.rounded([1.0], bf16, mode="stochastic")
    with pytest.raises(ValueError, match="known are nearest_even"):
        measure.rounded([1.0], bf16, mode="up")
    with pytest.raises(ValueError, match="known are saturate"):
        measure.rounded([1.0], bf16, overflow="wrap")
    for name, overflow, lacks in (("fp4_e2m1", "inf", "no infinity"), ("fp4_e2m1", "nan", "no NaN")):
        with pytest.raises(ValueError, match=f"has {lacks}: use overflow='saturate'"):
            measure.rounded([1.0], predict.FORMATS[name], overflow=overflow)
    with pytest.raises(ValueError, match="fp4_e2m1 has no NaN, but the array contains one"):
        measure.rounded([1.0, numpy.nan], predict.FORMATS["fp4_e2m1"])
    for refused in (predict.FORMATS["fp64"], predict.FORMATS["e8m0"], predict.NumberFormat("33 bits", 8, 24)):
        with pytest.raises(ValueError, match="is not supported here"):
            measure.rounded([1.0], refused)
