import math

import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch


def parameters_with_gradients(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in [(3, 4), (5,), (2, 2, 2), ()]]
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
    return parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
def test_equal_to_torch(max_norm, dtype):
    ours, theirs = parameters_with_gradients(dtype=dtype), parameters_with_gradients(dtype=dtype)
    norm = lm.clip_gradients(ours, max_norm=max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert norm == expected
    for a, b in zip(ours, theirs, strict=True):
        assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)


def test_a_small_gradient_is_left_alone_and_a_large_one_keeps_its_direction():
    small, large = parameters_with_gradients(), parameters_with_gradients()
    before = [p.grad.clone() for p in small if p.grad is not None]
    lm.clip_gradients(small, max_norm=1e6)
    norm = lm.clip_gradients(large, max_norm=0.5)
    for old, same, scaled in zip(before, small, large, strict=False):
        assert torch.equal(old, same.grad)
        torch.testing.assert_close(scaled.grad, old * 0.5 / norm)


def test_one_tensor_a_generator_and_nothing_at_all():
    parameter = parameters_with_gradients()[0]
    assert lm.clip_gradients(parameter, max_norm=1.0) > 1
    assert lm.clip_gradients((p for p in parameters_with_gradients()), max_norm=1.0) > 1
    assert lm.clip_gradients([torch.nn.Parameter(torch.zeros(2))], max_norm=1.0) == 0


def test_a_nan_is_reported():
    parameter = parameters_with_gradients()[0]
    parameter.grad[0, 0] = math.nan
    assert lm.clip_gradients([parameter], max_norm=1.0).isnan()


@pytest.mark.parametrize("max_norm", [0, -1.0, math.nan, math.inf, True])
def test_refuses(max_norm):
    with pytest.raises(ValueError, match="max_norm must be a finite number above 0"):
        lm.clip_gradients(parameters_with_gradients(), max_norm=max_norm)
