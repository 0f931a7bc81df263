import math

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm

pytestmark = pytest.mark.torch


def test_equals_torch_in_value_and_gradient():
    logits = (torch.randn(2, 3, 7, dtype=torch.float64) * 500).requires_grad_()
    targets = torch.randint(7, (2, 3))
    ours, theirs = lm.cross_entropy(logits, targets), F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits))


def test_knowing_nothing_costs_ln_v():
    assert lm.cross_entropy(torch.zeros(5, 11), torch.zeros(5, dtype=torch.long)).item() == pytest.approx(math.log(11))


def test_low_precision_logits_give_a_loss_in_fp32():
    logits, targets = torch.randn(4, 9).bfloat16(), torch.randint(9, (4,))
    loss = lm.cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), targets))


def test_shapes_that_do_not_fit_get_a_sentence():
    with pytest.raises(ValueError, match=r"targets of shape \(2, 4\) do not fit logits of shape \(2, 3, 7\)"):
        lm.cross_entropy(torch.zeros(2, 3, 7), torch.zeros(2, 4, dtype=torch.long))
