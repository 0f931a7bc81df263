import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.5, "lr_decay": 0.01, "weight_decay": 0.1},
        {"initial_accumulator_value": 0.1, "eps": 1e-5},
        {"maximize": True},
    ],
    ids=str,
)
def test_adagrad_is_torchs_to_the_last_bit(twins, dtype, options):
    twins.assert_equal_walks(lm.AdaGrad, torch.optim.Adagrad, dtype, **options)


def test_groups_and_missing_gradients(twins):
    twins.assert_equal_walks(lm.AdaGrad, torch.optim.Adagrad, torch.float32, groups=True, skip=4, lr_decay=0.1)


def test_the_state_is_a_sum_that_never_decays():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = lm.AdaGrad([parameter], lr=1.0)
    for _ in range(3):
        parameter.grad = torch.full((1,), 2.0)
        optimizer.step()
    assert optimizer.state[parameter]["sum"].item() == 12.0
    # Steps 1, 1/√2, 1/√3 times the rate, whatever the size of the gradient.
    assert parameter.item() == pytest.approx(-(1 + 2**-0.5 + 3**-0.5))


def test_a_group_added_later_starts_from_its_own_value():
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = lm.AdaGrad([first], initial_accumulator_value=0.5)
    optimizer.add_param_group({"params": [second]})
    assert optimizer.state[second]["sum"].item() == 0.5
    assert not optimizer.state[second]["sum"].requires_grad


@pytest.mark.parametrize("name", ["lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"])
def test_refusals(name):
    with pytest.raises(ValueError, match=f"{name} must be a finite number of at least 0, got -1"):
        lm.AdaGrad([torch.nn.Parameter(torch.ones(1))], **{name: -1})
