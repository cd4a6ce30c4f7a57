"""Allocations and frees that the replica of PyTorch's caching allocator serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.allocator.blocks import MemoryBlock
from scaleproof.simulator.memory.allocator.caching import CachingAllocator


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
