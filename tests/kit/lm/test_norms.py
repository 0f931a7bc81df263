import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm

pytestmark = pytest.mark.torch

close = torch.testing.assert_close


def with_random_parameters(module):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm_by_hand_equals_torch_and_the_module(bias, eps):
    module = with_random_parameters(lm.LayerNorm(8, bias=bias, eps=eps)).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    by_hand = lm.layer_norm(x, module.weight, module.bias, eps=eps)
    close(by_hand, F.layer_norm(x, (8,), module.weight, module.bias, eps))
    close(by_hand, module(x))
    inputs = [x, *module.parameters()]
    for a, b in zip(
        torch.autograd.grad(by_hand.square().sum(), inputs),
        torch.autograd.grad(module(x).square().sum(), inputs),
        strict=True,
    ):
        close(a, b)
    assert sum(p.numel() for p in module.parameters()) == 8 + 8 * bias


def test_layer_norm_works_over_the_width_not_the_sequence():
    y = lm.LayerNorm(64, bias=False)(torch.randn(2, 5, 64) * 3 + 7)
    close(y.mean(dim=-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    close(y.var(dim=-1, unbiased=False), torch.ones(2, 5), atol=1e-4, rtol=0)
    assert y.mean(dim=1).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_equals_torch(dtype):
    module = with_random_parameters(lm.RMSNorm(8, eps=1e-3)).to(dtype)
    x = torch.randn(2, 3, 8).to(dtype).requires_grad_()
    expected = F.rms_norm(x, (8,), module.weight, 1e-3)
    assert module(x).dtype == dtype
    close(module(x), expected)
    inputs = [x, module.weight]
    for a, b in zip(
        torch.autograd.grad(module(x).sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        close(a, b)


def test_rms_norm_survives_values_whose_square_overflows():
    x = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert torch.equal(lm.RMSNorm(4).half()(x), torch.ones(1, 4, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_norm_of_large_numbers_is_the_one_of_torch(dtype):
    x = (300 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))).to(dtype)
    weight, bias = torch.ones(64, dtype=dtype), torch.zeros(64, dtype=dtype)
    by_hand = lm.layer_norm(x, weight, bias)
    assert by_hand.dtype == dtype
    close(by_hand, F.layer_norm(x, (64,), weight, bias))
