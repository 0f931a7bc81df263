import math

import pytest
import torch
from scipy.stats import truncnorm

from cs336kit import lm

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_torch_in_value_and_gradient(bias):
    ours, theirs = lm.Linear(5, 3, bias=bias), torch.nn.Linear(5, 3, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 5)
    assert torch.equal(ours(x), theirs(x))
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert sum(p.numel() for p in ours.parameters()) == 15 + 3 * bias


def test_linear_keeps_the_variance_of_its_input():
    torch.manual_seed(0)
    y = lm.Linear(1024, 1024)(torch.randn(512, 1024))
    assert y.var().item() == pytest.approx(1, rel=0.05)
    weight = lm.Linear(100, 50).weight
    assert weight.abs().max() <= 3 / math.sqrt(100)


def test_a_weight_is_cut_off_on_both_sides():
    layer = lm.Linear(200, 200)
    for deviation in (0.1, 5.0):
        layer.initialize(deviation=deviation, cut=2)
        low, high = layer.weight.min().item(), layer.weight.max().item()
        assert -2 <= low / deviation < -1.95 and 1.95 < high / deviation <= 2 + 1e-6
        # Truncated and not clipped: of 40,000 values, the deviation is uncertain by 0.4 %, and clipped ones have 9 % more.
        assert layer.weight.std().item() / deviation == pytest.approx(truncnorm(-2, 2).std(), rel=0.02)


def test_embedding_equals_torch_in_value_and_gradient():
    ours, theirs = lm.Embedding(7, 3), torch.nn.Embedding(7, 3)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.tensor([[0, 6, 6], [1, 2, 0]])
    assert ours(tokens).shape == (2, 3, 3)
    assert torch.equal(ours(tokens), theirs(tokens))
    assert torch.equal(ours(tokens), ours.weight[tokens])
    ours(tokens).square().sum().backward()
    theirs(tokens).square().sum().backward()
    assert torch.equal(ours.weight.grad, theirs.weight.grad)
    with pytest.raises(IndexError):
        ours(torch.tensor([7]))


def test_bad_sizes_get_a_sentence():
    with pytest.raises(ValueError, match="inputs must be a positive whole number"):
        lm.Linear(0, 3)
    with pytest.raises(ValueError, match="outputs must be a positive whole number"):
        lm.Linear(3, 2.0)
    with pytest.raises(ValueError, match="tokens must be a positive whole number"):
        lm.Embedding(-1, 3)


def test_repr_and_meta():
    assert "5 → 3, bias=False" in repr(lm.Linear(5, 3, bias=False))
    assert "7 × 3" in repr(lm.Embedding(7, 3))
    with torch.device("meta"):
        assert lm.Linear(10**6, 10**6).weight.numel() == 10**12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_every_type_are_the_rounded_ones_of_fp32(dtype):
    torch.manual_seed(0)
    weight = lm.Linear(512, 512, bias=False, dtype=dtype).weight
    torch.manual_seed(0)
    assert torch.equal(weight, lm.Linear(512, 512, bias=False).weight.to(dtype))
    deviations = weight.double() * math.sqrt(512)
    # Of 262,144 values the mean is within 0.002 of 0 in two of three draws, and the last ones lie near the cut.
    assert abs(deviations.mean()) < 0.006 and deviations.min() < -2.97 and 2.97 < deviations.max() < 3.02
