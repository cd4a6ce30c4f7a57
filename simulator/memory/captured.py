"""Memory of a captured script: its allocations and frees, served by the replica of PyTorch's caching allocator."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaleproof.simulator.captured.script import CapturedClass
from scaleproof.simulator.captured.trace import IssuedCollective
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.allocator.caching import CachingAllocator
from scaleproof.simulator.memory.allocator.serving import ServedMemory, served
from scaleproof.simulator.memory.cuda_libraries import connections_bytes, workspace_bytes
from scaleproof.simulator.memory.inputs import is_gpu
from scaleproof.simulator.memory.live_memory import LiveMemory, live_after
from scaleproof.simulator.memory.result import HOLDERS, RankMemory
from scaleproof.simulator.parallelism import CapturedStrategy
from scaleproof.simulator.scenario.schema import Scenario


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
        own = replayed(one.before, one.allocations, expandable) if caches else requested
        result.append(ClassMemory(one.name, live, own, _outside_bytes(scenario, one)))
    return result


def captured_ranks(scenario: Scenario) -> tuple[RankMemory, ...]:
    """The peak memory of each rank class of a scenario with a captured script."""
    return tuple(one.rank_memory(scenario.framework.memory.scale) for one in classes_memory(scenario))


def _outside_bytes(scenario: Scenario, one: CapturedClass) -> dict[str, float]:
    """Bytes of the context and of libraries by holder; none where ranks compute on processors."""
    if not is_gpu(scenario.cluster.device):
        return {}
    collectives = [event for event in one.events if isinstance(event, IssuedCollective)]
    spans = {event.group: max(event.ranks) - min(event.ranks) + 1 for event in collectives if len(event.ranks) > 1}
    exchanging = max((len(event.ranks) for event in collectives if event.op == "alltoall"), default=1)
    return {
        "workspace": workspace_bytes(scenario.cluster.device),
        "library": connections_bytes(scenario.cluster, spans.values(), exchanging),
        "context": float(scenario.framework.memory.context_bytes),
    }


def replayed(before: Sequence[Allocation | Free], step: Sequence[Allocation | Free], expandable: bool = False) -> ServedMemory:
    """The memory of a rank that allocates what it has at the beginning of a step, and then takes steps."""
    return served([*before, *step, *_repeated(before, step)], CachingAllocator(expandable=expandable))


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
