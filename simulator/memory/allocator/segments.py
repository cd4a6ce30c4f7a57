"""Segments: memory that the caching allocator reserves on the device, of fixed size or expandable, and their blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

MIB: Final = 2**20
# Sizes in c10/cuda/CUDACachingAllocator.cpp: multiple to which requests are rounded (kMinBlockSize); largest request of the
# small pool (kSmallSize); size of its segments (kSmallBuffer); size of the large pool's segments (kLargeBuffer) for requests
# below a limit (kMinLargeAlloc), from which on segments are a multiple (kRoundLarge).
ROUNDING_BYTES: Final = 512
SMALL_REQUEST_BYTES: Final = MIB
SMALL_SEGMENT_BYTES: Final = 2 * MIB
LARGE_SEGMENT_BYTES: Final = 20 * MIB
SINGLE_SEGMENT_BYTES: Final = 10 * MIB
SEGMENT_ROUNDING_BYTES: Final = 2 * MIB


def rounded_up(size_bytes: int, multiple_bytes: int) -> int:
    """The smallest multiple that is not less than a size, in bytes."""
    return -(-size_bytes // multiple_bytes) * multiple_bytes


# Addresses of an expandable segment, a multiple of both pages: more than any device has, so that a pool needs no second one.
_ADDRESS_SPACE_BYTES: Final = 2**30 * LARGE_SEGMENT_BYTES


class MemoryBlock:
    """Consecutive bytes of a segment, which are allocated, free or, in expandable segments, not mapped.

    previous, next: the adjacent blocks of the segment.
    """

    __slots__ = ("address", "is_allocated", "is_mapped", "next", "pool", "previous", "size_bytes")

    def __init__(self, pool: BlockPool, address: int, size_bytes: int, is_mapped: bool = True) -> None:
        self.pool, self.address, self.size_bytes, self.is_mapped = pool, address, size_bytes, is_mapped
        self.is_allocated = False
        self.previous: MemoryBlock | None = None
        self.next: MemoryBlock | None = None

    def split(self, size_bytes: int) -> MemoryBlock:
        """Shortens the block to a size and returns the remainder, a new block behind it."""
        rest = MemoryBlock(self.pool, self.address + size_bytes, self.size_bytes - size_bytes, self.is_mapped)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next, self.size_bytes = rest, size_bytes
        return rest

    def merges_with(self, other: MemoryBlock | None) -> bool:
        """Whether an adjacent block is not allocated either, and mapped if this one is."""
        return other is not None and not other.is_allocated and other.is_mapped == self.is_mapped

    def absorb_next(self) -> None:
        """Extends the block by the next one."""
        assert self.next is not None
        self.size_bytes += self.next.size_bytes
        self.next = self.next.next
        if self.next is not None:
            self.next.previous = self


class BlockPool:
    """The blocks of one stream that serve small or large requests.

    free: mapped free blocks by size and address. unmapped: blocks that are not mapped, by address. segments: the first block of
    each segment.
    """

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.free: list[tuple[int, int, MemoryBlock]] = []
        self.unmapped: list[tuple[int, MemoryBlock]] = []
        self.segments: dict[int, MemoryBlock] = {}

    def add(self, block: MemoryBlock) -> MemoryBlock:
        """Adds a block that is not allocated to its list, after it has been merged with its neighbours; returns the result."""
        if block.merges_with(block.next):
            assert block.next is not None
            self.remove(block.next)
            block.absorb_next()
        previous = block.previous
        if previous is not None and block.merges_with(previous):
            self.remove(previous)
            previous.absorb_next()
            block = previous
        if block.is_mapped:
            insort(self.free, (block.size_bytes, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))
        return block

    def remove(self, block: MemoryBlock) -> None:
        """Removes a block from the list of free or of unmapped blocks."""
        if block.is_mapped:
            del self.free[bisect_left(self.free, (block.size_bytes, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def blocks(self) -> Iterator[MemoryBlock]:
        """All blocks, segment by segment in the order of addresses."""
        for first in self.segments.values():
            block: MemoryBlock | None = first
            while block is not None:
                yield block
                block = block.next


class Segments(ABC):
    """Memory reserved on a device with a capacity."""

    def __init__(self, capacity_bytes: float = math.inf) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.peak_reserved_bytes = self._next_address = 0

    @abstractmethod
    def best_fit(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """The free block to use for a request, removed from the pool's list; None if the pool has no such block."""

    @abstractmethod
    def grow(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """A free block of at least a size in newly reserved memory, which is in no list; None if the device is full."""

    @abstractmethod
    def release(self, pool: BlockPool) -> None:
        """Returns reserved memory that is free to the device."""

    @abstractmethod
    def splits(self, pool: BlockPool, rest_bytes: int) -> bool:
        """Whether a block is split if this remains of it."""

    def _reserve(self, size_bytes: int) -> bool:
        """Reserves memory; False if the device has too little."""
        if self.reserved_bytes + size_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _segment(self, pool: BlockPool, size_bytes: int, is_mapped: bool) -> MemoryBlock:
        """A new segment, which is one block."""
        block = MemoryBlock(pool, self._next_address, size_bytes, is_mapped)
        pool.segments[block.address] = block
        self._next_address += size_bytes
        return block


class FixedSegments(Segments):
    """Segments of one size from cudaMalloc to cudaFree, PyTorch's default."""

    def best_fit(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """The smallest free block that suffices."""
        at = bisect_left(pool.free, (size_bytes,))
        return pool.free.pop(at)[2] if at < len(pool.free) else None

    def grow(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """A new segment."""
        if pool.is_small:
            segment_bytes = SMALL_SEGMENT_BYTES
        elif size_bytes < SINGLE_SEGMENT_BYTES:
            segment_bytes = LARGE_SEGMENT_BYTES
        else:
            segment_bytes = rounded_up(size_bytes, SEGMENT_ROUNDING_BYTES)
        return self._segment(pool, segment_bytes, is_mapped=True) if self._reserve(segment_bytes) else None

    def release(self, pool: BlockPool) -> None:
        """Frees segments without an allocated block."""
        for _, _, block in list(pool.free):
            if block.previous is None and block.next is None:
                pool.remove(block)
                del pool.segments[block.address]
                self.reserved_bytes -= block.size_bytes

    def splits(self, pool: BlockPool, rest_bytes: int) -> bool:
        """Whether 512 bytes remain of a small block, or more than 1 MiB of a large one."""
        return rest_bytes >= ROUNDING_BYTES if pool.is_small else rest_bytes > SMALL_REQUEST_BYTES


class ExpandableSegments(Segments):
    """One segment for each pool, to the end of which pages are mapped (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)."""

    def best_fit(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """The free block that suffices and can be extended least."""
        at = bisect_left(pool.free, (size_bytes,))
        if at == len(pool.free):
            return None
        while at + 1 < len(pool.free) and _extended_bytes(pool.free[at + 1][2]) < _extended_bytes(pool.free[at][2]):
            at += 1
        return pool.free.pop(at)[2]

    def grow(self, pool: BlockPool, size_bytes: int) -> MemoryBlock | None:
        """Mapped pages behind the last allocated block, or in a gap that suffices."""
        if not pool.segments:
            pool.add(self._segment(pool, _ADDRESS_SPACE_BYTES, is_mapped=False))
        block = _with_room(pool, size_bytes)
        while not block.is_mapped or block.size_bytes < size_bytes:
            # a free block is followed by an unmapped one, since free neighbours are merged
            unmapped, missing_bytes = (block.next, size_bytes - block.size_bytes) if block.is_mapped else (block, size_bytes)
            assert unmapped is not None
            mapped = self._map(unmapped, min(missing_bytes, unmapped.size_bytes))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def release(self, pool: BlockPool) -> None:
        """Unmaps pages without an allocated byte."""
        page_bytes = _page_bytes(pool)
        for _, _, block in list(pool.free):
            begin = rounded_up(block.address, page_bytes)
            end = (block.address + block.size_bytes) // page_bytes * page_bytes
            if begin >= end:
                continue
            pool.remove(block)
            pages = block.split(begin - block.address) if begin > block.address else block
            behind = pages.split(end - begin) if end < pages.address + pages.size_bytes else pages
            pages.is_mapped = False
            for part in {block, pages, behind}:
                pool.add(part)
            self.reserved_bytes -= end - begin

    def splits(self, pool: BlockPool, rest_bytes: int) -> bool:
        """Whether 512 bytes remain."""
        return rest_bytes >= ROUNDING_BYTES

    def _map(self, block: MemoryBlock, size_bytes: int) -> MemoryBlock | None:
        """Maps the first pages of an unmapped block, and returns the free block that they become a part of; None if the device
        is full."""
        mapped_bytes = min(rounded_up(size_bytes, _page_bytes(block.pool)), block.size_bytes)
        if not self._reserve(mapped_bytes):
            return None
        block.pool.remove(block)
        rest = block.split(mapped_bytes) if mapped_bytes < block.size_bytes else None
        block.is_mapped = True
        if rest is not None:
            block.pool.add(rest)
        return block.pool.add(block)


def _page_bytes(pool: BlockPool) -> int:
    return SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES


def _extended_bytes(block: MemoryBlock) -> int:
    """Bytes of a free block with the unmapped ones behind it."""
    return block.size_bytes + (block.next.size_bytes if block.next is not None and not block.next.is_mapped else 0)


def _with_room(pool: BlockPool, size_bytes: int) -> MemoryBlock:
    """The first block in the order of addresses from which on at least a size is free or unmapped, and something unmapped."""
    for _, unmapped in pool.unmapped:
        previous = unmapped.previous
        first = previous if previous is not None and not previous.is_allocated else unmapped
        room_bytes, block = 0, first
        while True:
            room_bytes += block.size_bytes
            if room_bytes >= size_bytes:
                return first
            if block.next is None or block.next.is_allocated:
                break
            block = block.next
    raise AssertionError("the last block of an expandable segment is larger than any request")
