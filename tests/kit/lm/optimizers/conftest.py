"""Pairs (ours, torch's for-loop) that must agree to the last bit, and the walk on which they are compared."""

from types import SimpleNamespace

import pytest
import torch

SHAPES = ((), (1,), (7,), (0, 3), (5, 3), (2, 3, 4))


def tensors(dtype, seed=0):
    """Parameters of every kind of shape: 0-d, empty, and a non-contiguous one."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    values.append(torch.randn(6, 9, generator=generator).to(dtype).t())
    return [torch.nn.Parameter(value) for value in values]


def walk(optimizer, parameters, steps, seed=1, skip=None):
    """Take `steps` steps on random gradients; parameter number `skip` has no gradient on odd steps."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for index, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = None if index == skip and step % 2 else gradient
        optimizer.step()


def bits(tensor):
    """The bit patterns, so that −0 and +0, or two NaNs, are told apart."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    return tensor.detach().contiguous().view(-1).view(integers[tensor.element_size()])


def same_bits(ours, theirs):
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(ours, theirs, strict=True))


def assert_equal_walks(ours, theirs, dtype, steps=100, groups=False, skip=None, **options):
    """Both optimizers take the same walk from the same start; parameters and states must be equal to the last bit."""
    parameters, copies = tensors(dtype), tensors(dtype)
    if groups:
        split = [{"params": parameters[:3], "lr": 0.05, "weight_decay": 0.1}, {"params": parameters[3:]}]
        twin = [{"params": copies[:3], "lr": 0.05, "weight_decay": 0.1}, {"params": copies[3:]}]
    else:
        split, twin = parameters, copies
    ours, theirs = ours(split, **options), theirs(twin, foreach=False, **options)
    walk(ours, parameters, steps, skip=skip)
    walk(theirs, copies, steps, skip=skip)
    assert same_bits(parameters, copies)
    assert_same_state(ours, theirs)


def assert_same_state(ours, theirs):
    left, right = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert left.keys() == right.keys()
    for index, state in left.items():
        assert state.keys() == right[index].keys()
        assert same_bits(state.values(), right[index].values())


@pytest.fixture
def twins():
    return SimpleNamespace(
        tensors=tensors,
        walk=walk,
        same_bits=same_bits,
        assert_equal_walks=assert_equal_walks,
        assert_same_state=assert_same_state,
    )
