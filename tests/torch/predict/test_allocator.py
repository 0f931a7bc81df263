import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.predict.allocator import AllocatorState, allocated_bytes, reserved_bytes

MIB = 2**20


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 512), (512, 512), (513, 1024), (4096, 4096), (4100, 4608)])
def test_rounding(asked, given):
    assert allocated_bytes(asked) == given


def test_two_small_matrices_take_one_segment():
    assert reserved_bytes([4096, 4096]) == AllocatorState(8192, 8192, 2 * MIB)


def test_segments_by_size():
    assert reserved_bytes([MIB]).reserved == 2 * MIB
    assert reserved_bytes([MIB + 1]) == AllocatorState(MIB + 1, MIB + 512, 20 * MIB)
    assert reserved_bytes([11 * MIB + 1]) == AllocatorState(
        11 * MIB + 1, 12 * MIB, 12 * MIB
    )  # the rest is too small to keep
    assert reserved_bytes([MIB + 512, 15 * MIB]).reserved == 20 * MIB
    assert reserved_bytes([2 * MIB, 19 * MIB]).reserved == 20 * MIB + 20 * MIB


@given(st.lists(st.integers(1, 40 * MIB), max_size=30))
def test_each_sum_is_at_least_the_last(requests):
    state = reserved_bytes(requests)
    assert sum(requests) == state.requested <= state.allocated <= state.reserved
    assert state.reserved % (2 * MIB) == 0


def test_bad_input():
    with pytest.raises(ValueError, match="requested_bytes must be"):
        allocated_bytes(-1)
    with pytest.raises(ValueError, match="request 1 must be"):
        reserved_bytes([1, 0])
    with pytest.raises(ValueError, match="requests are the sizes of several tensors"):
        reserved_bytes(4096)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_the_device_agrees():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 513, 4096)]
    assert torch.cuda.memory_allocated() - before == sum(allocated_bytes(x.numel()) for x in kept)
