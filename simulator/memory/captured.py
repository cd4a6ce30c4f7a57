"""Memory of a captured script: its allocations and frees, served by the replica of PyTorch's caching allocator."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaleproof.simulator.memory.allocator.blocks import MemoryBlock
from scaleproof.simulator.memory.allocator.caching import CachingAllocator


class Allocation(NamedTuple):
    """An allocation: its number, bytes, stream, and the holder, module and line of the script that it belongs to."""

    number: int
    size_bytes: int
    stream: int
    holder: str
    module: str
    line: str


class Free(NamedTuple):
    """The end of an allocation."""

    number: int


@dataclass(frozen=True)
class ReplayedMemory:
    """Memory of one rank. allocated_bytes, reserved_bytes: maxima, as torch.cuda.max_memory_allocated and max_memory_reserved
    report them. holders_bytes, modules_bytes, lines_bytes: allocated bytes at the peak."""

    allocated_bytes: int
    reserved_bytes: int
    holders_bytes: Mapping[str, int]
    modules_bytes: Mapping[str, int]
    lines_bytes: Mapping[str, int]


def replayed(
    before: Sequence[Allocation | Free], step: Sequence[Allocation | Free], expandable: bool = False
) -> ReplayedMemory:
    """The memory of a rank that allocates what it has at the beginning of a step, and then takes steps."""
    allocator = CachingAllocator(math.inf, expandable)
    events = [*before, *step, *_repeated(before, step)]
    blocks: dict[int, MemoryBlock] = {}
    until_peak = 0
    for place, event in enumerate(events, start=1):
        if event.number in blocks:
            allocator.free(blocks.pop(event.number))
        if isinstance(event, Allocation) and event.size_bytes > 0:
            highest_bytes = allocator.peak_allocated_bytes
            blocks[event.number] = allocator.allocate(event.size_bytes, event.stream)
            until_peak = place if allocator.peak_allocated_bytes > highest_bytes else until_peak
    peak = _live_after(events[:until_peak])
    return ReplayedMemory(
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        *(_by(peak, field) for field in ("holder", "module", "line")),
    )


def _repeated(before: Sequence[Allocation | Free], step: Sequence[Allocation | Free]) -> list[Allocation | Free]:
    """The next step: it frees what the step has left where that step freed allocations of the same size from before it."""
    left = {event.number: event for event in _live_after(step)}
    earlier = {event.number: event for event in _live_after(before)}
    successors: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
    for event in left.values():
        successors[event.size_bytes, event.stream].append(event.number)
    events: list[Allocation | Free] = []
    for each in step:
        of = earlier.get(each.number) if isinstance(each, Free) else None
        queue = successors[of.size_bytes, of.stream] if of is not None else None
        events.append(Free(queue.popleft()) if queue else each)
    return events


def _live_after(events: Sequence[Allocation | Free]) -> list[Allocation]:
    """Allocations that are live after some events."""
    live: dict[int, Allocation] = {}
    for event in events:
        if isinstance(event, Free):
            live.pop(event.number, None)
        else:
            live[event.number] = event
    return list(live.values())


def _by(allocations: Sequence[Allocation], field: str) -> dict[str, int]:
    """Bytes of allocations by one of their fields, the largest first."""
    total: Counter[str] = Counter()
    for one in allocations:
        total[getattr(one, field)] += one.size_bytes
    return dict(total.most_common())
