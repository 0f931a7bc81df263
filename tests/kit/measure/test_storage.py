import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cs336kit import measure

pytestmark = pytest.mark.torch


def test_views_share_and_copies_do_not():
    x = torch.arange(6).view(2, 3)
    for view in (x, x[0], x[:, 1], x.T, x.view(3, 2), x.expand(4, 2, 3), x.detach()):
        assert measure.same_storage(x, view)
    for copy in (x.clone(), x.T.contiguous(), x[[0]], x + 0, x.T.reshape(2, 3)):
        assert not measure.same_storage(x, copy)


@pytest.mark.parametrize("make", [lambda: torch.empty(2, 3, device="meta"), lambda: torch.empty(0)])
def test_tensors_without_an_address_are_told_apart(make):
    x, y = make(), make()
    assert measure.same_storage(x, x.T if x.dim() == 2 else x)
    assert not measure.same_storage(x, y) and not measure.same_storage(torch.zeros(2), x)


def test_fake_tensors_are_told_apart():
    with FakeTensorMode():
        x, y = torch.empty(2, 3), torch.empty(2, 3)
        assert measure.same_storage(x, x.T) and not measure.same_storage(x, y)
        assert measure.storage_bytes(x, x.T, y) == 48


def test_two_doors_to_one_numpy_array():
    array = numpy.zeros(4)
    assert measure.same_storage(torch.from_numpy(array), torch.from_numpy(array))


def test_storage_bytes_counts_each_storage_once():
    x, y = torch.zeros(2, 3), torch.zeros(5, dtype=torch.float64)
    assert measure.storage_bytes(x) == 24
    assert measure.storage_bytes(x, x.T, x[0]) == 24
    assert measure.storage_bytes(x, y) == 64
    assert measure.storage_bytes([x, (y, x)]) == 64
    assert measure.storage_bytes() == 0
    assert measure.storage_bytes(x[0, :1]) == 24


def test_storage_bytes_of_a_model_counts_tied_weights_once():
    a, b = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    b.weight = a.weight
    assert measure.storage_bytes([*a.parameters(), *b.parameters()]) == 64


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (lambda x: x.contiguous(), "same tensor"),
        (lambda x: x.add_(1), "same tensor"),
        (lambda x: x.T, "view"),
        (lambda x: x.split(1), "view"),
        (lambda x: x.T.contiguous(), "copy"),
        (lambda x: x * 2, "copy"),
        (lambda x: (x, x.clone()), "copy"),
    ],
)
def test_view_or_copy(operation, kind):
    assert measure.view_or_copy(operation, torch.zeros(2, 3)) == kind


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (lambda x, y: y, "same tensor"),
        (lambda x, y: (y, x), "same tensor"),
        (lambda x, y: (x, y.T), "view"),
        (lambda x, y: (x.T, y + 1), "copy"),
        (lambda x, y: x @ y.T, "copy"),
    ],
)
def test_view_or_copy_of_several_tensors(operation, kind):
    assert measure.view_or_copy(operation, torch.zeros(2, 3), torch.zeros(2, 3)) == kind


@pytest.mark.parametrize("value", [None, 3, "x", numpy.zeros(3)])
def test_what_is_not_a_tensor_gets_a_sentence(value):
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="must be a torch tensor"):
        measure.same_storage(x, value)
    with pytest.raises(ValueError, match="must be a torch tensor"):
        measure.view_or_copy(lambda x: x, value)
    with pytest.raises(ValueError, match="must be a torch tensor"):
        measure.view_or_copy(lambda x: value, x)


def test_storage_bytes_refuses_numbers_and_strings():
    for value in (3, "weights", None):
        with pytest.raises(ValueError, match="tensor 0 must be a torch tensor"):
            measure.storage_bytes(value)


def test_sparse_tensors_get_a_sentence():
    with pytest.raises(ValueError, match="no single storage"):
        measure.storage_bytes(torch.eye(3).to_sparse())


def test_view_or_copy_needs_a_function_and_a_tensor():
    with pytest.raises(ValueError, match="must be a function"):
        measure.view_or_copy(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="at least one tensor"):
        measure.view_or_copy(lambda: torch.zeros(2))
    with pytest.raises(ValueError, match="returned no tensor"):
        measure.view_or_copy(lambda x: [], torch.zeros(2))
