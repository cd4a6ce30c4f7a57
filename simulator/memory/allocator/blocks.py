"""Blocks of device memory in segments, and sorted lists of free blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


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
