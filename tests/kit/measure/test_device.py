import pytest
import torch

from cs336kit import measure
from cs336kit.measure.device import device_name

pytestmark = pytest.mark.torch


def test_default_is_cuda_where_there_is_one():
    assert measure.device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cpu", "meta", torch.device("cpu")])
def test_named_devices(name):
    assert measure.device(name) == torch.device(name)


@pytest.mark.parametrize("name", ["gpu", "tpu", "", 3.5, "xpu"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="is not a device"):
        measure.device(name)


@pytest.mark.parametrize("name", ["mps", "mps:0", torch.device("mps")])
def test_who_has_a_mac_is_told_what_works(name):
    with pytest.raises(ValueError, match="^'mps(:0)?' is not a device .*read CUDA's clock.*lesson runs on a Mac's CPU"):
        measure.device(name)


def test_missing_cuda_is_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="this machine has no CUDA device"):
        measure.device("cuda")


def test_an_index_too_far_lists_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert measure.device("cuda") == torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match=r"only 'cuda:0', 'cuda:1'"):
        measure.device("cuda:2")


def test_without_a_number_the_current_gpu_is_meant(monkeypatch):
    for name, value in (("is_available", True), ("is_initialized", True), ("device_count", 8), ("current_device", 3)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert measure.device() == measure.device("cuda") == torch.device("cuda", 3)
    assert measure.device("cuda:0") == torch.device("cuda", 0)


def test_name():
    assert device_name(torch.device("cpu")) == "cpu"


def test_the_name_of_a_gpu_is_its_driver_s(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: f"Example {where.index}")
    assert device_name() == "Example 0" and device_name(torch.device("cuda:1")) == "Example 1"
    assert measure.device() == torch.device("cuda:0")
