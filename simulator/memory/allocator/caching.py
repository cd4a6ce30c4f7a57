"""PyTorch's caching allocator for CUDA: which requests share reserved memory, how much is reserved, and what it serves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.allocator.segments import (
    ROUNDING_BYTES,
    SMALL_REQUEST_BYTES,
    BlockPool,
    ExpandableSegments,
    FixedSegments,
    MemoryBlock,
    rounded_up,
)


class DeviceFullError(MemoryError):
    """A request does not fit, even after all cached memory has been returned to the device."""


class CachingAllocator:
    """A replica of the rules of c10/cuda/CUDACachingAllocator.cpp with its default settings, without memory.

    capacity_bytes: of the device, that the allocator can reserve. expandable: whether segments are expandable. allocated_bytes,
    peak_allocated_bytes: of blocks, so of requests after rounding. retries: the number of requests for which cached memory was
    returned to the device. allocations: the number of requests so far; peak_allocation: the number of those before the peak of
    allocated bytes, and the one that reached it.
    """

    def __init__(self, capacity_bytes: float = math.inf, expandable: bool = False) -> None:
        self._segments = (ExpandableSegments if expandable else FixedSegments)(capacity_bytes)
        self._pools: dict[tuple[int, bool], BlockPool] = {}
        self.allocated_bytes = self.peak_allocated_bytes = self.retries = self.allocations = self.peak_allocation = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are reserved on the device."""
        return self._segments.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum of the reserved bytes so far."""
        return self._segments.peak_reserved_bytes

    def allocate(self, size_bytes: int, stream: int = 0) -> MemoryBlock:
        """A block for a request. Raises DeviceFullError if the device has too little memory."""
        size_bytes = max(ROUNDING_BYTES, rounded_up(size_bytes, ROUNDING_BYTES))
        pool = self._pool(stream, size_bytes)
        block = self._segments.best_fit(pool, size_bytes) or self._segments.grow(pool, size_bytes)
        if block is None:
            block = self._retried(pool, size_bytes)
        block.is_allocated = True
        if self._segments.splits(pool, block.size_bytes - size_bytes):
            pool.add(block.split(size_bytes))
        self.allocated_bytes += block.size_bytes
        self.allocations += 1
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes, self.peak_allocation = self.allocated_bytes, self.allocations
        return block

    def free(self, block: MemoryBlock) -> None:
        """Frees an allocated block; its memory stays reserved."""
        block.is_allocated = False
        self.allocated_bytes -= block.size_bytes
        block.pool.add(block)

    def release(self) -> None:
        """Returns cached memory to the device, as torch.cuda.empty_cache does."""
        for pool in self._pools.values():
            self._segments.release(pool)

    def blocks(self) -> Iterator[MemoryBlock]:
        """All blocks of all segments, as in torch.cuda.memory_snapshot."""
        for pool in self._pools.values():
            yield from pool.blocks()

    def _pool(self, stream: int, size_bytes: int) -> BlockPool:
        is_small = size_bytes <= SMALL_REQUEST_BYTES
        key = stream, is_small
        if key not in self._pools:
            self._pools[key] = BlockPool(is_small)
        return self._pools[key]

    def _retried(self, pool: BlockPool, size_bytes: int) -> MemoryBlock:
        """A block for a request for which the device was full, after cached memory has been returned to it."""
        self.retries += 1
        self.release()
        block = self._segments.grow(pool, size_bytes)
        if block is None:
            raise DeviceFullError(f"{size_bytes} bytes requested, {self.reserved_bytes} reserved")
        return block


class ServedMemory(NamedTuple):
    """What an allocator served.

    allocated_bytes, reserved_bytes: maxima, as torch.cuda.max_memory_allocated and max_memory_reserved report them. retries:
    requests for which cached memory had to be returned to the device. holders_bytes: allocated bytes at the peak, by holder;
    last: the allocation that reached it, None without allocations.
    """

    allocated_bytes: int
    reserved_bytes: int
    retries: int
    holders_bytes: Mapping[str, int]
    last: Allocation | None


def served(events: Iterable[Allocation | Free], allocator: CachingAllocator) -> ServedMemory:
    """The memory that an allocator needs for some events. Raises DeviceFullError if the device has too little."""
    blocks: dict[int, tuple[str, MemoryBlock]] = {}
    live, holders_bytes, last = Counter[str](), dict[str, int](), None
    for event in events:
        if event.number in blocks:
            holder, block = blocks.pop(event.number)
            live[holder] -= block.size_bytes
            allocator.free(block)
        if isinstance(event, Allocation) and event.size_bytes > 0:
            peak_bytes = allocator.peak_allocated_bytes
            block = allocator.allocate(event.size_bytes, event.stream)
            blocks[event.number] = event.holder, block
            live[event.holder] += block.size_bytes
            if allocator.peak_allocated_bytes > peak_bytes:
                holders_bytes, last = dict(live), event
    return ServedMemory(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, allocator.retries, holders_bytes, last)
