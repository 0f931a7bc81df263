"""What a truncated normal cuts and keeps, beside torch's normal distribution integrated by steps."""

import math

import pytest
import torch

from cs336kit import predict

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("bounds", [(-1, 1), (-3, 3), (-0.5, 2), (1, 4)])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.3, 2.0)])
def test_truncation_against_torch_distributions(bounds, mean, std):
    low, high = bounds
    normal = torch.distributions.Normal(torch.tensor(mean, dtype=torch.float64), std)
    inside = normal.cdf(torch.tensor(high)) - normal.cdf(torch.tensor(low))
    assert predict.fraction_cut(std=std, a=low, b=high, mean=mean) == pytest.approx(1 - inside.item(), abs=1e-7)
    x = torch.linspace(low, high, 200001, dtype=torch.float64)
    weight = normal.log_prob(x).exp()
    weight /= weight.sum()
    variance = (weight * x**2).sum() - (weight * x).sum() ** 2
    assert predict.truncated_std(std=std, a=low, b=high, mean=mean) == pytest.approx(variance.sqrt().item(), rel=1e-4)


def test_far_tails_do_not_round_to_nothing_too_early():
    assert predict.fraction_cut(std=1.0, a=-3.0, b=3.0) == pytest.approx(0.0026997960632601866)
    assert 0 < predict.fraction_cut(std=1.0, a=-20.0, b=20.0) < 1e-80
    assert predict.fraction_cut(std=0.02, a=-2.0, b=2.0) == 0.0  # 100 standard deviations


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: predict.fraction_cut(std=0.0, a=-1, b=1), "std must be"),
        (lambda: predict.truncated_std(std=1.0, a=1, b=1), "a=1 must be below b=1"),
        (lambda: predict.fraction_cut(std=1.0, a=-1, b=1, mean=math.nan), "mean must be a finite number, got nan"),
        (lambda: predict.fraction_cut(std=1.0, a="-1", b=1), "a must be a finite number"),
    ],
)
def test_refusals(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_bounds_that_are_too_far_to_matter_cut_nothing():
    assert predict.truncated_std(std=0.5, a=-1e308, b=1e308) == 0.5
