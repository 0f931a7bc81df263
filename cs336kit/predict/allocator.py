"""What CUDA's caching allocator makes of a request: bytes rounded up, and segments reserved from the driver."""

from collections.abc import Iterable
from dataclasses import dataclass

from cs336kit.predict._common.checks import non_negative_int, positive_int

KIB, MIB = 2**10, 2**20
#: Every block is a multiple of this.
BLOCK_BYTES = 512
#: Requests up to this size live in the small pool, whose segments have SMALL_SEGMENT_BYTES.
SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES = 1 * MIB, 2 * MIB
#: Larger requests below this size get a segment of LARGE_SEGMENT_BYTES; from it on, their own, rounded up to 2 MiB.
LARGE_REQUEST_BYTES, LARGE_SEGMENT_BYTES, ROUND_SEGMENT_BYTES = 10 * MIB, 20 * MIB, 2 * MIB


def allocated_bytes(requested_bytes: int) -> int:
    """Bytes that `torch.cuda.memory_allocated` grows by for one tensor: the request rounded up to 512 bytes.

    Nothing is allocated for an empty tensor. Left out: the `roundup_power2_divisions` option.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
    """
    return _round_up(non_negative_int("requested_bytes", requested_bytes), BLOCK_BYTES)


@dataclass(frozen=True)
class AllocatorState:
    """`requested` by tensors, `allocated` to blocks, `reserved` from the driver: three sums of bytes, each ≥ the last."""

    requested: int
    allocated: int
    reserved: int


def reserved_bytes(requests: Iterable[int]) -> AllocatorState:
    """Allocate `requests` one after another on a fresh device and free none: requested, allocated and reserved bytes.

    Each request takes the smallest free block of its pool that holds it and leaves the rest for later ones; without
    one, a segment is reserved. Left out: freeing, streams, expandable segments and other options.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp.
    """
    if not isinstance(requests, Iterable):
        raise ValueError(f"requests are the sizes of several tensors, such as [4, 4096], got {requests!r}.")
    free: dict[str, list[int]] = {"small": [], "large": []}
    requested = allocated = reserved = 0
    for place, request in enumerate(requests):
        request = positive_int(f"request {place}", request)
        size = allocated_bytes(request)
        small = size <= SMALL_REQUEST_BYTES
        blocks = free["small" if small else "large"]
        fitting = [block for block in blocks if block >= size]
        if fitting:
            block = min(fitting)
            blocks.remove(block)
        else:
            block = _segment_bytes(size)
            reserved += block
        rest = block - size
        # The rest stays usable if it is worth it; otherwise the block is handed out whole.
        split = rest >= BLOCK_BYTES if small else rest > SMALL_REQUEST_BYTES
        if split:
            blocks.append(rest)
        requested += request
        allocated += size if split else block
    return AllocatorState(requested, allocated, reserved)


def _segment_bytes(size: int) -> int:
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return _round_up(size, ROUND_SEGMENT_BYTES)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
