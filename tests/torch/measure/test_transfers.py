import pytest
import torch

from cs336kit.measure.transfers import overlap_timeline, transfer

QUICK = {"warmup": 1, "at_least": 2, "at_most": 2}


def test_host_to_host_runs_anywhere():
    copy = transfer(2**20, direction="host to host", **QUICK)
    assert copy.size_bytes == 2**20 and copy.bytes_per_second == 2**20 / copy.timing.median


def test_bad_input():
    with pytest.raises(ValueError, match="direction must be one of 'host to device'"):
        transfer(10, direction="up")
    with pytest.raises(ValueError, match="size_bytes must be"):
        transfer(0, direction="host to host")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_so():
    for run in (lambda: transfer(10), lambda: transfer(10, direction="host to host", pinned=True), overlap_timeline):
        with pytest.raises(RuntimeError, match="no CUDA device"):
            run()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu():
    for direction in ("host to device", "device to host", "device to device"):
        assert transfer(2**24, direction=direction, pinned="host" in direction, **QUICK).bytes_per_second > 0
    spans = overlap_timeline(batches=3, size_bytes=2**24, products=1, width=512)
    assert [span[:2] for span in spans] == [(lane, i) for i in range(3) for lane in ("copy", "compute")]
