import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.9, "weight_decay": 0.1},
        {"centered": True},
        {"momentum": 0.9},
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True},
    ],
    ids=str,
)
def test_rmsprop_is_torchs_to_the_last_bit(twins, dtype, options):
    twins.assert_equal_walks(lm.RMSProp, torch.optim.RMSprop, dtype, **options)


def test_groups_and_missing_gradients(twins):
    twins.assert_equal_walks(lm.RMSProp, torch.optim.RMSprop, torch.float32, groups=True, skip=4, centered=True)


def test_the_first_step_is_not_corrected_for_bias():
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.full((1,), 3.0)
    lm.RMSProp([parameter], lr=0.01, alpha=0.99).step()
    assert parameter.item() == pytest.approx(-0.01 / (1 - 0.99) ** 0.5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1, such as 0.9, got 1.0"),
        ({"alpha": -0.1}, "alpha must be a finite number of at least 0, got -0.1"),
        ({"eps": float("inf")}, "eps must be a finite number of at least 0, got inf"),
        ({"momentum": "0.9"}, "momentum must be a finite number of at least 0, got '0.9'"),
    ],
)
def test_refusals(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.RMSProp([torch.nn.Parameter(torch.ones(1))], **options)
