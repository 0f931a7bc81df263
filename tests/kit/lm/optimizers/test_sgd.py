import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}, {"lr": 0}], ids=str)
def test_sgd_is_torchs_to_the_last_bit(twins, dtype, options):
    twins.assert_equal_walks(lm.SGD, torch.optim.SGD, dtype, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.8, "dampening": 0.3},
        {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
        {"momentum": 0.9, "maximize": True},
        {"momentum": 1.5, "lr": 1e-4},
    ],
    ids=str,
)
def test_momentum_is_torchs_to_the_last_bit(twins, dtype, options):
    twins.assert_equal_walks(lm.Momentum, torch.optim.SGD, dtype, **options)


def test_groups_and_missing_gradients(twins):
    twins.assert_equal_walks(lm.Momentum, torch.optim.SGD, torch.float32, groups=True, skip=4, momentum=0.9)
    twins.assert_equal_walks(lm.SGD, torch.optim.SGD, torch.float32, groups=True, skip=0)


def test_sgd_keeps_no_state():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = lm.SGD([parameter], lr=0.5)
    optimizer.step()
    assert not any(optimizer.state.values())
    assert torch.equal(parameter, torch.full((3,), 0.5))


def test_the_buffer_is_a_sum_that_does_not_alias_the_gradient():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = lm.Momentum([parameter], lr=1.0, momentum=0.9)
    for _ in range(2):
        parameter.grad = torch.ones(2)
        optimizer.step()
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == pytest.approx([1.9, 1.9])
    assert parameter.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lm.SGD, {"lr": -1}, r"lr must be a finite number of at least 0, got -1"),
        (lm.SGD, {"lr": float("nan")}, r"lr must be a finite number of at least 0, got nan"),
        (lm.SGD, {"lr": True}, r"lr must be a finite number of at least 0, got True"),
        (lm.SGD, {"weight_decay": -0.1}, r"weight_decay must be a finite number of at least 0, got -0.1"),
        (lm.Momentum, {"momentum": 0}, r"without momentum use SGD"),
        (lm.Momentum, {"momentum": -0.5}, r"momentum must be a finite number of at least 0, got -0.5"),
        (lm.Momentum, {"nesterov": True, "dampening": 0.1}, r"with nesterov=True only 0 is allowed"),
    ],
)
def test_refusals(make, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make([torch.nn.Parameter(torch.ones(1))], **options)
