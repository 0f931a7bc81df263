"""Claims about the deep linear model of the lecture."""

import torch
from claims.settled import settles

from cs336kit import lm

D, LAYERS, B = 64, 2, 8


def deep_linear(*, bias=False):
    """The model in bare torch: layers of width D and a head of width 1."""
    layers = [torch.nn.Linear(D, D, bias=bias) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(D, 1, bias=bias))


def count(model):
    return sum(p.numel() for p in model.parameters())


@settles("cruncher-params-with-bias")
def test_params_with_bias():
    return (D * D + D) * LAYERS + D + 1, count(deep_linear(bias=True)), count(deep_linear(bias=False))


@settles("cruncher-params-no-bias")
def test_params_no_bias():
    return D * D * LAYERS + D, count(deep_linear(bias=False)), count(deep_linear(bias=True))


@settles("cruncher-output-shape")
def test_output_shape():
    shapes = [tuple(lm.Cruncher(D, LAYERS, squeeze=squeeze)(torch.randn(B, D)).shape) for squeeze in (False, True)]
    return (B, 1), *shapes


@settles("cruncher-each-followed-by-head")
def test_each_followed_by_head():
    weights = lm.Cruncher(D, LAYERS).state_dict()
    return LAYERS, sum(weight.shape[0] == 1 for name, weight in weights.items() if weight.ndim == 2)


@settles("nn-parameter")
def test_nn_parameter():
    # Parameters, leaves that want a gradient, and known to their module.
    layer = torch.nn.Linear(4, 4)
    registered = any(layer.weight is p for p in layer.parameters())
    return (True, True, True), (isinstance(layer.weight, torch.nn.Parameter), layer.weight.requires_grad, registered)
