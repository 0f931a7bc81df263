import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.predict.allocator import AllocatorState, CachingAllocator, allocated_bytes, reserved_bytes

pytestmark = pytest.mark.torch

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
    # A request of 1 MiB is a small one: what is left of its segment holds other small ones, and so to the last block of 512.
    assert reserved_bytes([MIB, 512]).reserved == reserved_bytes([MIB, MIB - 512, 512]).reserved == 2 * MIB
    assert [reserved_bytes([size]).reserved for size in (10 * MIB - 512, 10 * MIB)] == [20 * MIB, 10 * MIB]
    # Of a large segment 1 MiB more than is asked for is not worth a block of its own.
    assert reserved_bytes([9 * MIB, 10 * MIB]) == AllocatorState(19 * MIB, 20 * MIB, 20 * MIB)
    assert reserved_bytes([9 * MIB, 10 * MIB - 512]).allocated == 19 * MIB - 512


def test_what_comes_back_is_put_together_with_its_neighbors():
    allocator = CachingAllocator()
    first, second, third = (allocator.allocate(2 * MIB) for _ in range(3))
    assert (allocator.requested, allocator.reserved) == (6 * MIB, 20 * MIB)
    for block in (first, third, second):
        allocator.release(block)
    assert allocator.requested == allocator.allocated == 0 and allocator.most_allocated == 6 * MIB
    # All of the segment is one block again.
    allocator.allocate(19 * MIB)
    assert (allocator.allocated, allocator.reserved, allocator.most_requested) == (20 * MIB, 20 * MIB, 19 * MIB)
    # Of blocks that fit the smallest.
    again = CachingAllocator()
    pieces = [again.allocate(size * MIB) for size in (5, 2, 4, 2, 5)]
    for block in (pieces[0], pieces[2]):
        again.release(block)
    assert again.allocate(7 * MIB // 2) is pieces[2] and again.reserved == 20 * MIB


def test_of_blocks_of_one_size_the_lowest_address():
    allocator = CachingAllocator()
    # Two segments, and a segment in pieces: whichever is freed first, the one in front is handed out first.
    whole = [allocator.allocate(24 * MIB) for _ in range(2)]
    pieces = [allocator.allocate(size * MIB) for size in (4, 2, 4, 2)]
    for first, second in (whole, pieces[::2]):
        for freed in ((first, second), (second, first)):
            for block in freed:
                allocator.release(block)
            size = first.size
            assert allocator.allocate(size) is first and allocator.allocate(size) is second
    assert allocator.reserved == (24 + 24 + 20) * MIB


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
