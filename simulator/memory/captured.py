"""Memory of a captured script: its live allocations over a step, served by the replica of PyTorch's caching allocator."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.record import NONE, EventKind
from scaleproof.simulator.captured.script import CapturedClass
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.allocator.caching import CachingAllocator, ServedMemory, served
from scaleproof.simulator.memory.cuda_libraries import connections_bytes, workspace_bytes
from scaleproof.simulator.memory.inputs import is_gpu
from scaleproof.simulator.memory.result import HOLDERS, RankMemory
from scaleproof.simulator.scenario.schema import Scenario


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

    holders: what they hold. live_bytes: shape (holders, 1 + allocations and frees). at: row of each among the events of
    the step. peak_place: of the peak among these columns.
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


@dataclass(frozen=True)
class ClassMemory:
    """Memory of the ranks of a class: bytes of its tensors over the step, what the allocator served, and bytes outside of it by
    holder."""

    name: str
    live: LiveMemory
    served: ServedMemory
    outside_bytes: Mapping[str, float]

    def rank_memory(self, scale: float) -> RankMemory:
        """The same as the memory of a kind of rank. scale: factor on all bytes, from calibration."""
        holders = dict.fromkeys(HOLDERS, 0.0) | dict(self.outside_bytes)
        for holder, size in self.live.peak.holders_bytes.items():
            holders[holder] += size
        holders["fragmentation"] += max(0, self.served.reserved_bytes - self.live.peak.size_bytes)
        return RankMemory(self.name, {holder: scale * size for holder, size in holders.items()})


def classes_memory(scenario: Scenario, expandable: bool = False) -> list[ClassMemory]:
    """Memory of each rank class of a scenario with a captured script."""
    strategy = scenario.strategy
    assert isinstance(strategy, CapturedStrategy)
    caches, result = is_gpu(scenario.cluster.device), []
    for one in strategy.script.classes:
        live = LiveMemory.from_allocations(one.before, one.allocations)
        peak = live.peak
        # processors have no caching allocator, but the bytes that tensors request
        requested = ServedMemory(peak.size_bytes, peak.size_bytes, 0, peak.holders_bytes, peak.last)
        own = replayed(one.before, one.allocations, expandable, one.events.first_update) if caches else requested
        result.append(ClassMemory(one.name, live, own, _outside_bytes(scenario, one)))
    return result


def _outside_bytes(scenario: Scenario, one: CapturedClass) -> dict[str, float]:
    """Bytes of the context and of libraries by holder; none where ranks compute on processors."""
    if not is_gpu(scenario.cluster.device):
        return {}
    communicates = one.events.rows(EventKind.COLLECTIVE, EventKind.SEND, EventKind.RECEIVE)
    groups = {row: one.groups[one.events.group[row]] for row in communicates if one.events.group[row] != NONE}
    spans = {group.name: max(group.ranks) - min(group.ranks) + 1 for group in groups.values() if len(group.ranks) > 1}
    exchanging = max((len(group.ranks) for row, group in groups.items() if one.events.op[row] == "alltoall"), default=1)
    return {
        "workspace": workspace_bytes(scenario.cluster.device),
        "library": connections_bytes(scenario.cluster, spans.values(), exchanging),
        "context": float(scenario.framework.memory.context_bytes),
    }


def replayed(
    before: Sequence[Allocation | Free], step: Sequence[Allocation | Free], expandable: bool = False, update: int = 0
) -> ServedMemory:
    """The memory of a rank that takes steps. update: row of the event at which its optimizer's step begins.

    As in training, the first step begins without what a step leaves for the next one, such as gradients, and with no states of
    the optimizer, which it allocates once it has gradients.
    """
    freed = {event.number for event in step if isinstance(event, Free)}
    lasting = [event for event in before if isinstance(event, Allocation) and event.number not in freed]
    states = [event for event in lasting if event.holder == "optimizer_states"]
    others = [event for event in lasting if event.holder != "optimizer_states"]
    place = next((place for place, event in enumerate(step) if event.at >= update), len(step))
    first = [*others, *step[:place], *states, *step[place:]]
    return served([*first, *_repeated(before, step)], CachingAllocator(expandable=expandable))


def _repeated(before: Sequence[Allocation | Free], step: Sequence[Allocation | Free]) -> list[Allocation | Free]:
    """The next step: it frees what the step has left where that step freed allocations of the same size from before it."""
    left = {event.number: event for event in live_after(step)}
    earlier = {event.number: event for event in live_after(before)}
    successors: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
    for event in left.values():
        successors[event.size_bytes, event.stream].append(event.number)
    events: list[Allocation | Free] = []
    for each in step:
        of = earlier.get(each.number) if isinstance(each, Free) else None
        queue = successors[of.size_bytes, of.stream] if of is not None else None
        events.append(Free(queue.popleft()) if queue else each)
    return events
