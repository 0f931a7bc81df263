"""What CUDA's caching allocator makes of a request: bytes rounded up, and segments reserved from the driver."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from cs336kit.predict.checks import non_negative_int, positive_int, shown

KIB, MIB = 2**10, 2**20
#: Every block is a multiple of this.
BLOCK_BYTES = 512
#: Requests up to this size are served by the small pool, whose segments have SMALL_SEGMENT_BYTES.
SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES = 1 * MIB, 2 * MIB
#: Larger requests below this size get a segment of LARGE_SEGMENT_BYTES; from it on, one of their own, rounded up to 2 MiB.
LARGE_REQUEST_BYTES, LARGE_SEGMENT_BYTES, ROUND_SEGMENT_BYTES = 10 * MIB, 20 * MIB, 2 * MIB
#: Workspace of cuBLAS, one for the thread of the forward pass and one for that of the backward pass, by major compute
#: capability; None: all others. Source: PyTorch 2.11, ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.
WORKSPACE_BYTES = {9: 32 * MIB, 10: 32 * MIB, None: 8 * MIB + 128 * KIB}
#: That of cuBLASLt, which a thread has beside it once it has added a bias to a product. Source: as above,
#: parseCUDABlasLtWorkspaceSize.
LT_WORKSPACE_BYTES = 1 * MIB


def allocated_bytes(requested_bytes: int) -> int:
    """Bytes that `torch.cuda.memory_allocated` grows by for one tensor: the request rounded up to 512 bytes.

    Nothing is allocated for an empty tensor. Left out: the `roundup_power2_divisions` option.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
    """
    return round_up(non_negative_int("requested_bytes", requested_bytes), BLOCK_BYTES)


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
        raise ValueError(f"requests are the sizes of several tensors, such as [4, 4096], got {shown(requests)}.")
    allocator = CachingAllocator()
    for place, request in enumerate(requests):
        allocator.allocate(positive_int(f"request {place}", request))
    return AllocatorState(allocator.requested, allocator.allocated, allocator.reserved)


class Block:
    """A piece of a segment, with its neighbors there. Of blocks of one size, the one with the lowest address is taken."""

    __slots__ = ("address", "after", "before", "requested", "size", "small")

    def __init__(
        self, address: int, size: int, small: bool, before: "Block | None" = None, after: "Block | None" = None
    ):
        self.address, self.size, self.small, self.before, self.after = address, size, small, before, after
        self.requested = 0


class CachingAllocator:
    """What torch's allocator does on one stream: it takes the smallest free block that fits, splits it, and merges it when freed.

    `requested`, `allocated`, `reserved`: bytes now; `most_requested`, `most_allocated`: their maxima so far.
    The addresses are those of a driver that puts every segment behind the one before; a real one need not.
    Left out: other streams, expandable segments, garbage collection, a device that is full.
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp.
    """

    def __init__(self) -> None:
        #: small or not → free blocks by (size, address)
        self.free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self.requested = self.allocated = self.reserved = self.most_requested = self.most_allocated = 0

    def allocate(self, request: int) -> Block:
        """A block of at least this size; `release` takes it back."""
        size = allocated_bytes(request)
        small = size <= SMALL_REQUEST_BYTES
        free = self.free[small]
        place = bisect_left(free, (size, -1))
        if place < len(free):
            _, _, block = free.pop(place)
        else:
            block = Block(self.reserved, _segment_bytes(size), small)
            self.reserved += block.size
        rest = block.size - size
        # The rest becomes a free block if it is large enough; otherwise the block is handed out whole.
        if rest >= BLOCK_BYTES if small else rest > SMALL_REQUEST_BYTES:
            other = Block(block.address + size, rest, small, block, block.after)
            if block.after is not None:
                block.after.before = other
            block.after, block.size = other, size
            self._offer(other)
        block.requested = request
        self.requested += request
        self.allocated += block.size
        self.most_requested = max(self.most_requested, self.requested)
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Take a block back, and merge it with free neighbors."""
        self.requested -= block.requested
        self.allocated -= block.size
        block.requested = 0
        for neighbor in (block.before, block.after):
            if neighbor is not None and not neighbor.requested:
                self._withdraw(neighbor)
                first, second = (neighbor, block) if neighbor is block.before else (block, neighbor)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        self._offer(block)

    def _offer(self, block: Block) -> None:
        insort(self.free[block.small], (block.size, block.address, block))

    def _withdraw(self, block: Block) -> None:
        free = self.free[block.small]
        del free[bisect_left(free, (block.size, block.address))]


def _segment_bytes(size: int) -> int:
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(size, ROUND_SEGMENT_BYTES)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below this value."""
    return -(-value // multiple) * multiple
