import pytest
import torch

from cs336kit.teach import on_gpu

pytestmark = pytest.mark.torch


def test_without_cuda_it_says_that_the_cell_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_gpu() is False
    assert "needs a CUDA device" in capsys.readouterr().out


def test_with_cuda_it_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert on_gpu() is True
    assert capsys.readouterr().out == ""
