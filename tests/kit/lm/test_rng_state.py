import random

import numpy as np
import pytest
import torch

from cs336kit.lm import AdamW, get_batch, seed_everything
from cs336kit.lm.runs import rng_state, set_rng_state

pytestmark = pytest.mark.torch


def draws():
    return random.gauss(0, 1), float(np.random.randn()), torch.randn(3).tolist(), random.random(), torch.rand(1).item()


def test_every_stream_goes_on_where_it_was():
    seed_everything(5)
    draws()  # leaves a half-used pair of normal numbers in Python's and NumPy's generators
    state = rng_state()
    expected = [draws() for _ in range(3)]
    seed_everything(99)
    set_rng_state(state)
    assert [draws() for _ in range(3)] == expected


def test_the_state_is_tensors_and_plain_values():
    for name, value in rng_state().items():
        parts = value if isinstance(value, list) else [value]
        assert all(type(part) in (int, float, str, type(None), torch.Tensor) for part in parts), name


def test_streams_and_batches_stay_on_the_cpu_whatever_the_default_device():
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    optimizer = AdamW([weight])
    with torch.device("meta"):
        state = rng_state()
        x, y = get_batch(np.arange(9), batch=2, sequence=3, generator=torch.Generator().manual_seed(0))
        optimizer.step()
    tensors = [part for value in state.values() for part in (value if isinstance(value, list) else [value])]
    tensors = [x, y, optimizer.state[weight]["step"], *(part for part in tensors if isinstance(part, torch.Tensor))]
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    set_rng_state(state)
