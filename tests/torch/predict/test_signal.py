"""Predicted second moments against real nets over many draws, in units of the predicted standard error."""

import math

import pytest
import torch

from cs336kit import predict

WIDTH, LAYERS, NETS = 32, 10, 4000
ACTIVATIONS = {
    "linear": (0.0, lambda x: x),
    "relu": (0.0, torch.relu),
    "leaky_relu": (0.3, lambda x: torch.nn.functional.leaky_relu(x, 0.3)),
}


def nets(activation, weight_std):
    """Mean squares (NETS,) of the last layer and of the gradient of a random direction at the first."""
    generator = torch.Generator().manual_seed(0)
    start = torch.ones(NETS, WIDTH, 1, requires_grad=True)
    x = start
    for _ in range(LAYERS):
        x = activation(torch.randn(NETS, WIDTH, WIDTH, generator=generator) * weight_std @ x)
    top = torch.randn(NETS, WIDTH, 1, generator=generator)
    x.backward(top / top.square().mean((1, 2), keepdim=True).sqrt())
    return x.detach().square().mean((1, 2)), start.grad.square().mean((1, 2))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mean_and_spread_of_activations_and_gradients(name):
    slope, function = ACTIVATIONS[name]
    shape = {"layers": LAYERS, "fan": WIDTH, "weight_std": 0.2, "activation": name, "slope": slope}
    mean = predict.second_moments(1.0, **shape)[-1]
    spread = predict.second_moment_spread(LAYERS, width=WIDTH, activation=name, slope=slope)
    for measured in nets(function, 0.2):
        assert abs(measured.mean().item() / mean - 1) < 3 * spread / math.sqrt(NETS)
        assert measured.std().item() / mean == pytest.approx(spread, rel=0.2)


def test_the_scale_that_keeps_the_second_moment():
    kept = predict.second_moments(2.0, layers=3, fan=50, weight_std=math.sqrt(2 / 50), activation="relu")
    assert kept == pytest.approx([2.0] * 4)
    assert predict.second_moments(1.0, layers=2, fan=4, weight_std=1.0) == [1.0, 4.0, 16.0]


def test_by_hand():
    # Each addition brings 0.5² · 8; a layer of 3 inputs 3 · 2² · (1 + 0.5²)/2.
    assert predict.residual_second_moments(3.0, additions=3, branch=8.0, scale=0.5) == [3, 5, 7, 9]
    assert predict.second_moments(2.0, layers=1, fan=3, weight_std=2.0, activation="leaky_relu", slope=0.5) == [2, 15]
    # k is 3 · (1 + 0.5⁴)/2 over the square of (1 + 0.5²)/2.
    k = (3 * 1.0625 / 2) / 0.625**2
    spread = predict.second_moment_spread(2, width=4, activation="leaky_relu", slope=0.5)
    assert spread == pytest.approx(math.sqrt((1 + (k - 1) / 4) ** 2 - 1))


def test_residual_stream():
    generator = torch.Generator().manual_seed(0)
    layers, width = 6, 4096
    x = torch.randn(8, width, generator=generator)
    for _ in range(2 * layers):
        normed = x / x.square().mean(1, keepdim=True).sqrt()
        x = x + normed @ torch.randn(width, width, generator=generator).div_(math.sqrt(width)) / math.sqrt(2 * layers)
    predicted = predict.residual_second_moments(1.0, additions=2 * layers, scale=1 / math.sqrt(2 * layers))
    assert predicted[-1] == pytest.approx(2.0)
    assert x.square().mean().item() == pytest.approx(2.0, rel=0.05)
    assert predict.residual_second_moments(1.0, additions=3, branch=2.0) == [1.0, 3.0, 5.0, 7.0]


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
        (lambda: predict.second_moments(1.0, layers=2, fan=3, weight_std=1.0, activation="gelu"), "unknown activation"),
        (lambda: predict.second_moments(1.0, layers=0, fan=3, weight_std=1.0), "layers must be"),
        (lambda: predict.second_moments(1.0, layers=2, fan=3, weight_std=-1.0), "weight_std must be"),
        (lambda: predict.second_moment_spread(2, width=0), "width must be"),
        (lambda: predict.fraction_cut(std=0.0, a=-1, b=1), "std must be"),
        (lambda: predict.truncated_std(std=1.0, a=1, b=1), "a=1 must be below b=1"),
        (lambda: predict.fraction_cut(std=1.0, a=-1, b=1, mean=math.nan), "mean must be a finite number, got nan"),
        (lambda: predict.fraction_cut(std=1.0, a="-1", b=1), "a must be a finite number"),
        (lambda: predict.second_moment_spread(2, width=4, activation="leaky_relu", slope=math.nan), "slope must be"),
        (lambda: predict.residual_second_moments(1.0, additions=2.5), "additions must be"),
    ],
)
def test_refusals(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_bounds_that_are_too_far_to_matter_cut_nothing():
    assert predict.truncated_std(std=0.5, a=-1e308, b=1e308) == 0.5
