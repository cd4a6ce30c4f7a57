"""Live allocations of a captured rank: bytes by what they hold over a step, and the peak by module and line of the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.allocations import Allocation, Free


class PeakMemory(NamedTuple):
    """Bytes of live tensors at the peak of a step, by what they hold, by module, and by line of the script, each the largest
    first. What is in no module counts by line; '' stands for what belongs to none. last: the allocation that reached the peak,
    None without allocations."""

    size_bytes: int
    holders_bytes: Mapping[str, int]
    modules_bytes: Mapping[str, int]
    lines_bytes: Mapping[str, int]
    last: Allocation | None


@dataclass(frozen=True, eq=False)
class LiveMemory:
    """Bytes of live tensors at the beginning of a step and after each of its allocations and frees, without what the allocator
    rounds and keeps.

    holders: what they hold. live_bytes: shape (holders, 1 + allocations and frees). at: number of the step's other events
    before each. peak_place: of the peak among these columns.
    """

    holders: tuple[str, ...]
    live_bytes: NDArray[np.int64]
    at: NDArray[np.int64]
    peak_place: int
    peak: PeakMemory

    @classmethod
    def from_allocations(cls, before: Sequence[Allocation | Free], step: Sequence[Allocation | Free]) -> Self:
        """The live bytes of what is allocated before a step and in it. The first of equal peaks counts."""
        events = [*before, *step]
        holders = tuple(dict.fromkeys(event.holder for event in events if isinstance(event, Allocation)))
        changes = np.zeros((len(holders), len(events) + 1), np.int64)
        alive: dict[int, Allocation] = {}
        for place, event in enumerate(events, start=1):
            ended = alive.pop(event.number, None)
            if ended is not None:
                changes[holders.index(ended.holder), place] -= ended.size_bytes
            if isinstance(event, Allocation):
                alive[event.number] = event
                changes[holders.index(event.holder), place] += event.size_bytes
        live_bytes = np.cumsum(changes, axis=1)[:, len(before) :]
        place = int(np.argmax(live_bytes.sum(axis=0)))
        at = np.array([0, *(event.at for event in step)], np.int64)
        until_peak = events[: len(before) + place]
        return cls(holders, live_bytes, at, place, _peak(live_after(until_peak), until_peak))


def live_after(events: Sequence[Allocation | Free]) -> list[Allocation]:
    """Allocations that are live after some allocations and frees."""
    live: dict[int, Allocation] = {}
    for event in events:
        if isinstance(event, Free):
            live.pop(event.number, None)
        else:
            live[event.number] = event
    return list(live.values())


def _peak(live: Sequence[Allocation], events: Sequence[Allocation | Free]) -> PeakMemory:
    """The peak of live allocations, which the last of some events has reached."""
    holders, modules, lines = Counter[str](), Counter[str](), Counter[str]()
    for one in live:
        holders[one.holder] += one.size_bytes
        modules[one.module or (one.line and f"{one.line}, in no module")] += one.size_bytes
        lines[one.line] += one.size_bytes
    last = events[-1] if events else None
    size_bytes = sum(one.size_bytes for one in live)
    by_holder, by_module, by_line = (dict(each.most_common()) for each in (holders, modules, lines))
    return PeakMemory(size_bytes, by_holder, by_module, by_line, last if isinstance(last, Allocation) else None)
