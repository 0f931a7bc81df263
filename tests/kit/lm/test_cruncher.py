import pytest
import torch

from cs336kit.lm import Cruncher

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("d", "layers"), [(64, 2), (3, 1), (16, 5)])
def test_parameters_and_shapes(d, layers):
    for bias, expected in ((False, d * d * layers + d), (True, d * d * layers + d * layers + d + 1)):
        model = Cruncher(d, layers, bias=bias)
        assert sum(p.numel() for p in model.parameters()) == expected
        assert model(torch.zeros(5, d)).shape == (5,)
        assert sum(name.startswith("final.weight") for name in model.state_dict()) == 1
    assert Cruncher(d, layers, squeeze=False)(torch.zeros(5, d)).shape == (5, 1)


def test_it_is_linear_and_keeps_the_size_of_the_signal():
    torch.manual_seed(0)
    model = Cruncher(256, 4)
    x, y = torch.randn(2, 512, 256)
    assert torch.allclose(model(x + 3 * y), model(x) + 3 * model(y), atol=1e-4)
    assert 0.8 < model(x).std() < 1.25


@pytest.mark.parametrize(("d", "layers"), [(0, 2), (64, 0), (2.0, 1)])
def test_sizes_are_checked(d, layers):
    with pytest.raises(ValueError, match="must be a positive whole number"):
        Cruncher(d, layers)
