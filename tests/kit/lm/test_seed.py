import random

import numpy as np
import pytest
import torch

from cs336kit.lm import seed_everything

pytestmark = pytest.mark.torch


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_same_seed_same_draws():
    assert seed_everything(7) is None
    first = draws()
    seed_everything(7)
    assert draws() == first
    seed_everything(8)
    assert draws() != first


def test_own_generators_are_left_alone():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    seed_everything(7)
    assert torch.equal(generator.get_state(), before)


def test_the_largest_seed():
    seed_everything(2**32 - 1)
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*32 = 4294967296, because NumPy takes 32 bits"):
        seed_everything(2**32)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True, "7"])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        seed_everything(seed)
