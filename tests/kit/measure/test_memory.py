import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import profile

from cs336kit import measure
from cs336kit.measure.memory import memory_timeline

pytestmark = pytest.mark.torch


def by_profiler(function):
    """The allocator's own events, as an independent witness."""
    with profile(profile_memory=True) as recorded:
        function()

    def walk(nodes):
        for node in nodes:
            yield node
            yield from walk(node.children)

    tree = recorded.profiler.kineto_results.experimental_event_tree()
    events = sorted((e.start_time_ns, e.extra_fields.alloc_size) for e in walk(tree) if e.name == "[memory]")
    live = peak = 0
    for _, size in events:
        live += size
        peak = max(peak, live)
    return peak


def peak(function, **arguments):
    return measure.peak_bytes(function, device="cpu", **arguments)


def test_small_cases_by_hand():
    x = torch.ones(1000)
    assert peak(lambda: x + 1) == 4000
    assert peak(lambda: (x + 1) * 2) == 8000
    assert peak(lambda: x.add_(1).view(10, 100).t()) == 0
    assert peak(lambda: torch.tensor([1.0, 2.0])) == 8
    assert peak(lambda: [torch.ones(10) for _ in range(5)]) == 200
    assert peak(lambda: [torch.ones(10).sum() for _ in range(5)]) == 5 * 4 + 40 - 4 + 4 - 4 + 4
    assert peak(lambda: None) == 0


def test_rounding_as_on_a_gpu():
    x = torch.ones(1000)
    assert peak(lambda: torch.ones(3, dtype=torch.uint8)) == 3
    assert memory_timeline(lambda: torch.ones(3, dtype=torch.uint8))[0].live_bytes == 3
    assert peak(lambda: x + 1, round_to=512) == 4096


def test_a_training_step_equals_the_allocators_events():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    x = torch.randn(16, 32)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        model.zero_grad(set_to_none=True)

    step()
    assert peak(step) == by_profiler(step)


def test_gradients_that_stay_are_alive_at_the_end():
    model, x = nn.Linear(8, 4, bias=False), torch.randn(2, 8)
    points = memory_timeline(lambda: model(x).sum().backward())
    assert points[-1].live_bytes == 4 * 8 * 4  # the weight's gradient
    assert points[0].operator.startswith("aten.")


def test_addresses_that_are_used_again_do_not_confuse_it():
    def run():
        for _ in range(50):
            a = torch.ones(100)
            b = a + 1
            del a, b

    assert peak(run) == 800


def test_what_was_there_before_may_go():
    there = [torch.ones(1000)]

    def function():
        made = there[0] + 1
        there.clear()
        return made + 1

    assert [point.live_bytes for point in memory_timeline(function)] == [4000, 8000, 0]


def test_resized_storage():
    assert peak(lambda: torch.empty(0).resize_(250)) == 1000


def test_fake_and_meta_tensors_need_no_memory():
    assert peak(lambda: torch.empty(10**6, 10**6, device="meta").relu()) == 8 * 10**12
    with FakeTensorMode():
        assert peak(lambda: torch.empty(10**6, 10**6).relu()) == 8 * 10**12


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpus_allocator_agrees_with_the_tracker():
    x = torch.ones(1000, device="cuda")
    for function in (lambda: x + 1, lambda: (x + 1) * 2, lambda: x.add_(1), lambda: [x.exp() for _ in range(5)]):
        function()
        assert measure.peak_bytes(function, device="cuda") == peak(function, round_to=512)


def test_on_a_gpu_the_peak_is_the_allocator_s_beyond_what_was_there(monkeypatch):
    allocated, calls = [700, 1900], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda where: allocated[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda where: allocated[1])
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda where, name=name: calls.append(name))
    assert measure.peak_bytes(lambda: calls.append("run"), device="cuda") == 1200
    assert calls == ["synchronize", "reset_peak_memory_stats", "run", "synchronize"]


def test_inference_is_seen_operator_by_operator():
    x, targets = torch.randn(4, 64), torch.zeros(4, dtype=torch.int64)
    points = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            points.append(memory_timeline(lambda: nn.functional.cross_entropy(x, targets)))
    assert points[0] == points[1] and max(point.live_bytes for point in points[0]) > 4 * x.numel()


def test_the_allocator_is_asked_for_by_its_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    x = torch.ones(1000)
    assert measure.peak_bytes(lambda: x + 1) == 4000
    assert measure.peak_bytes(lambda: x + 1, round_to=512) == 4096
    with pytest.raises(ValueError, match="allocator rounds by itself: leave out device or round_to=512"):
        measure.peak_bytes(lambda: x + 1, device="cuda", round_to=512)


def test_sparse_gradients_count():
    table = nn.Embedding(10, 4, sparse=True)
    points = memory_timeline(lambda: table(torch.tensor([1, 2])).sum().backward())
    assert points[-1].live_bytes == 2 * 8 + 2 * 4 * 4  # indices and rows


def test_bad_input():
    with pytest.raises(TypeError, match="but got a Tensor"):
        peak(torch.ones(3))
    with pytest.raises(ValueError, match="round_to must be"):
        peak(lambda: None, round_to=0)


def test_a_storage_that_is_emptied_and_filled_again_counts_while_it_is_full():
    before = torch.ones(4)

    def resizes():
        made = torch.ones(8)
        made.untyped_storage().resize_(0)
        after = torch.ones(1)
        before.untyped_storage().resize_(0)  # what was there does not count, nor that it goes
        before.untyped_storage().resize_(16 + 40)
        made.untyped_storage().resize_(32)
        return after, torch.ones(1)

    assert [point.live_bytes for point in measure.memory_timeline(resizes)] == [32, 4, 4 + 40 + 32 + 4, 40]
