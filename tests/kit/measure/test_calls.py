import functools

import pytest
import torch

from cs336kit import measure
from cs336kit.measure.device import runnable

pytestmark = pytest.mark.torch


def double(x, times=2):
    return times * x


@pytest.mark.parametrize(
    "function", [lambda: 1, lambda x=1: x, functools.partial(double, 3), torch.get_num_threads, dict]
)
def test_what_runs_comes_back(function):
    assert runnable("measure.flops", function) is function


@pytest.mark.parametrize("instrument", [measure.flops, measure.seconds, measure.peak_bytes, measure.memory_timeline])
def test_instruments_say_what_to_write(instrument):
    with pytest.raises(TypeError, match=r"runs a function, such as lambda: x @ w, but got a Tensor: put 'lambda:'"):
        instrument(torch.ones(2))
    with pytest.raises(TypeError, match=r"double\(x, times=2\) needs some: write lambda: double\(…\)"):
        instrument(double)
    with pytest.raises(TypeError, match="runs a function, such as lambda: x @ w, but got a NoneType"):
        instrument(None)


def test_a_module_needs_its_input():
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"calls the function without arguments, but forward\(input"):
        measure.flops(layer.forward)
    with pytest.raises(TypeError, match=r"but Linear\(input.* needs some: write lambda: Linear\("):
        measure.seconds(layer)
