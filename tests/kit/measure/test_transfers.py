import contextlib
import sys
import timeit

import pytest
import torch

from cs336kit.measure.seconds import _cuda_repeat
from cs336kit.measure.transfers import overlap_timeline, transfer

pytestmark = pytest.mark.torch

module = sys.modules[transfer.__module__]

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


class Gpu:
    """Streams and events that run nothing: a clock that every event moves on, and who waited for whom."""

    def __init__(self, monkeypatch):
        gpu, self.now, self.waited = self, 0, []

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream=None):
                gpu.now += 1
                self.at = gpu.now

            def synchronize(self):
                gpu.waited.append(self.at)

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        class Stream:
            def __init__(self, where):
                self.device = where

            def wait_event(self, event):
                gpu.waited.append(event.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *where: None)
        self.kept, self.pinned = [], []
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.kept.append(tensor.nbytes))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.pinned.append(tensor.nbytes) or tensor)
        monkeypatch.setattr(module, "_device", lambda name: torch.device("cpu"))


@pytest.mark.parametrize("pinned", [True, False])
def test_what_computes_a_batch_waits_for_its_copy(monkeypatch, pinned):
    gpu, copies, copy = Gpu(monkeypatch), [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda *args, **how: copies.append(how) or copy(*args, **how))
    spans = overlap_timeline(batches=2, size_bytes=64, products=1, width=4, pinned=pinned)
    # The host goes on while a batch is copied.
    assert copies == [{"non_blocking": True}] * 4
    # The first two are the warm-up's; four events each: copy from 1 to 2, products from 3 to 4.
    assert gpu.waited == [2, 6, 10, 14] and gpu.kept == [64] * 4 and gpu.pinned == [64] * (2 if pinned else 0)
    assert spans == [("copy", 0, 0, 1), ("compute", 0, 2, 3), ("copy", 1, 4, 5), ("compute", 1, 6, 7)]


@pytest.mark.parametrize(
    ("direction", "pinned"),
    [("host to device", 1), ("device to host", 1), ("device to device", 0), ("host to host", 2)],
)
def test_only_what_lies_on_the_host_is_pinned(monkeypatch, direction, pinned):
    gpu = Gpu(monkeypatch)
    copied = transfer(2**20, direction=direction, pinned=True, **QUICK)
    assert gpu.pinned == [2**20] * pinned and copied.pinned and copied.size_bytes == 2**20
    assert not transfer(2**20, direction="host to device", **QUICK).pinned and len(gpu.pinned) == pinned


def test_a_repeat_on_a_gpu_is_the_seconds_between_its_events(monkeypatch):
    gpu, calls = Gpu(monkeypatch), []
    # Whatever the host does between the events beside the calls, a GPU with short kernels waits for.
    monkeypatch.setattr(timeit, "timeit", lambda *given, **how: pytest.fail("it compiles its loop anew"))
    assert _cuda_repeat(lambda: calls.append(gpu.now), 3, torch.device("cpu")) == 1.0
    # A call that is not timed hides the way of the first kernel to the device.
    assert calls == [0, 1, 1, 1] and gpu.waited == [2]


def test_the_host_s_memory_is_the_host_s_whatever_the_default_device(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "seconds", lambda function, **options: seen.append(function().device.type))
    with torch.device("meta"):
        transfer(16, direction="host to host")
    assert seen == ["cpu"]
