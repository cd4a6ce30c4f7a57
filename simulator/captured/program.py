"""Program of a captured step: the tasks of all rank classes, with their collectives and messages matched."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.rank_tasks import HostCosts, RankTasks
from scaleproof.simulator.captured.trace import IssuedCollective, IssuedMessage, RankTrace
from scaleproof.simulator.cluster.collectives.cost import rendezvous_s
from scaleproof.simulator.cluster.collectives.groups import Group, Op, bus_factor
from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.engine import replay
from scaleproof.simulator.program import ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.contention import MEMORY_BYTES_PER_BUS_BYTE, ContendedResources
from scaleproof.simulator.strategy.data_parallel.power import joules_per_bus_byte
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Dimensions whose collectives are inside layers, and start with no receives queued in the network.
_INSIDE: Final = (Dimension.TENSOR, Dimension.SEQUENCE, Dimension.CONTEXT, Dimension.EXPERT)
# Bytes of memory that collectives move per byte on the bus, where nothing else is stated: read and written.
_USUAL_MEMORY_BYTES: Final = 2.0
# Streams of groups begin here; those of ranks are below.
_FIRST_GROUP_STREAM: Final = 64
_MOST_GROUPS: Final = 63
_STEPS: Final = 2


class _Added(NamedTuple):
    """A collective in the program: its row, members, and what it moves."""

    row: int
    members: tuple[int, ...]
    op: Op
    bus_bytes: float


def assembled(traces: Sequence[RankTrace], job: Job, host: HostCosts, main_stream: int = 0) -> Assembly:
    """The program of the traces of all rank classes, with the tasks of each class.

    Kernels next to collectives of gradients take longer, as far as the device is shared: when they overlap follows from a
    replay without contention.

    Raises InputError for messages without counterpart.
    """
    built = Assembly(traces, job, host, main_stream, {})
    resources = ContendedResources.of(job)
    if resources is None or not built.issued:
        return built
    return Assembly(traces, job, host, main_stream, _longer_s(built, resources))


class Assembly:
    """Adds all traces to a program. longer_s: seconds by which the blocks of each class take longer. traces, tasks: those of
    each class."""

    def __init__(
        self, traces: Sequence[RankTrace], job: Job, host: HostCosts, main_stream: int, longer_s: dict[int, Sequence[float]]
    ) -> None:
        self._job, self.traces, self._devices = job, traces, job.cluster.node.devices
        self._builder = ProgramBuilder()
        self._resource_map = ResourceMap(job.cluster, self._builder)
        self._class_of = {rank: number for number, trace in enumerate(traces) for rank in trace.ranks}
        self._group_streams: dict[tuple[int, str], int] = {}
        self._matched: dict[tuple[object, ...], int] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._ends: defaultdict[tuple[object, ...], set[bool]] = defaultdict(set)
        self.issued: list[_Added] = []
        self.tasks: list[RankTasks] = []
        ranks = [self._add_rank(trace) for trace in traces]
        for number, trace in enumerate(traces):
            tasks = RankTasks(
                self._builder, ranks[number], host, job.slowest, longer_s.get(number, ()),
                lambda event, after, number=number: self._communicate(number, event, after),  # type: ignore[misc]
            )  # fmt: skip
            tasks.add(trace, main_stream)
            self.tasks.append(tasks)
        self._check_messages()
        self.program = self._builder.build()

    def _add_rank(self, trace: RankTrace) -> int:
        node = trace.played // self._devices
        each = sum(rank // self._devices == node for rank in trace.ranks)
        # every rank waits for the slowest one in each step, which slows the whole class
        uneven = trace.ranks if self._job.unevenness.named else ()
        return self._resource_map.add_rank(
            trace.name, self._job.unevenness, trace.played, node, each=each, multiplicity=len(trace.ranks), members=uneven
        )

    def _communicate(self, number: int, event: IssuedCollective | IssuedMessage, after: Sequence[int]) -> int:
        if isinstance(event, IssuedCollective):
            return self._collective(number, event, after)
        return self._message(number, event, after)

    def _collective(self, number: int, event: IssuedCollective, after: Sequence[int]) -> int:
        """Adds a collective, or what this class's part in it follows if another class has added it."""
        classes = tuple(sorted({self._class_of[rank] for rank in event.ranks}))
        kind = (event.op, classes, len(event.ranks), event.group if len(classes) == 1 else "")
        key = (*kind, self._counts[(number, *kind)])
        self._counts[(number, *kind)] += 1
        if len(classes) > 1 and key in self._matched:
            self._builder.follow(self._matched[key], np.array(after, dtype=np.int64))
            return self._matched[key]
        group = Group.of(list(event.ranks), self._devices)
        nodes = sorted({self.traces[one].played // self._devices for one in classes})
        size_bytes, path = self._resource_map.collective(
            event.op, group, event.size_bytes, nodes, self._concurrent(number, group)
        )
        if self._job.framework.rendezvous and event.dimension in _INSIDE:
            path = replace(path, latency_s=path.latency_s + rendezvous_s(group, self._job.cluster))
        row = self._builder.collective(
            classes, size_bytes, path, Phase.SYNCHRONISE, after, stream=self._group_stream(classes[0], event.group),
            labels=Communication.of(event.dimension, event.op, event.size_bytes),
        )  # fmt: skip
        self._matched[key] = row
        self.issued.append(_Added(row, classes, event.op, event.size_bytes * bus_factor(event.op, group.size)))
        return row

    def _concurrent(self, number: int, group: Group) -> int:
        """Number of equivalent groups, of other ranks of the same nodes, that communicate at the same time."""
        node = self.traces[number].played // self._devices
        here = sum(rank // self._devices == node for rank in self.traces[number].ranks)
        own = sum(rank // self._devices == node and self._class_of[rank] == number for rank in group.ranks)
        return max(1, here // max(1, own))

    def _group_stream(self, leader: int, group: str) -> int:
        """The stream of a group's collectives, of the class that leads it."""
        known = self._group_streams
        if (leader, group) not in known:
            own = sum(one == leader for one, _ in known)
            known[leader, group] = _FIRST_GROUP_STREAM + own % _MOST_GROUPS
        return known[leader, group]

    def _message(self, number: int, event: IssuedMessage, after: Sequence[int]) -> int:
        """Adds a message, or what this side of it follows if the other side has added it."""
        if event.peer not in self._class_of:
            raise InputError(f"{self.traces[number].name} exchanges a message with rank {event.peer}, which no class has")
        peer = self._class_of[event.peer]
        ends = (number, peer) if event.sends else (peer, number)
        side = (*ends, event.tag, event.sends)
        key = (*ends, event.tag, self._counts[side])
        self._counts[side] += 1
        self._ends[key].add(event.sends)
        if key in self._matched:
            self._builder.follow(self._matched[key], np.array(after, dtype=np.int64))
            return self._matched[key]
        source, target = (self._place(self.traces[one].played) for one in ends)
        if ends[0] == ends[1]:
            played = self.traces[number].played
            source, target = (self._place(rank) for rank in ((played, event.peer) if event.sends else (event.peer, played)))
        concurrent = sum(rank // self._devices == source[0] for rank in self.traces[ends[0]].ranks)
        stall_s = self._job.framework.stall_s(-(-len(self._class_of) // self._devices))
        path = self._resource_map.concurrent_messages(source, target, event.size_bytes, concurrent, stall_s)
        row = self._builder.transfer(
            *ends, event.size_bytes, path, Phase.SEND, after,
            labels=Communication.of(Dimension.PIPELINE, "sendrecv", event.size_bytes),
        )  # fmt: skip
        self._matched[key] = row
        return row

    def _place(self, rank: int) -> tuple[int, int]:
        """Node and device of a rank."""
        return divmod(rank, self._devices)

    def _check_messages(self) -> None:
        """Raises InputError if a message is sent and not received, or the reverse."""
        for (source, target, _, _), sides in self._ends.items():
            if len(sides) == 1:
                names = self.traces[source].name, self.traces[target].name  # type: ignore[call-overload]
                missing = "receives" if True in sides else "sends"
                raise InputError(f"a message from {names[0]} to {names[1]}: nobody {missing} it; capture both in the same step")


def _longer_s(built: Assembly, resources: ContendedResources) -> dict[int, Sequence[float]]:
    """Seconds by which each block of each class takes longer next to collectives, by class."""
    timeline = replay.simulate(built.program, _STEPS)
    start_s, end_s = timeline.start_s[-1], timeline.end_s[-1]
    result: dict[int, Sequence[float]] = {}
    for number, blocks in enumerate(tasks.blocks for tasks in built.tasks):
        rows = np.array([block.row for block in blocks], dtype=np.int64)
        work_s = np.array([block.kernels_s for block in blocks])
        bound = np.array([block.moves for block in blocks])
        main = np.array([block.is_main for block in blocks], dtype=np.bool_)
        longer_s = np.zeros(len(blocks))
        for issued in built.issued:
            if number in issued.members:
                longer_s += _next_to_s(issued, (start_s, end_s), rows, bound, resources) * main
        result[number] = np.minimum(longer_s, work_s).tolist()
    return result


def _next_to_s(
    issued: _Added, times_s: tuple[NDArray[np.float64], NDArray[np.float64]], rows: NDArray[np.int64],
    bound: NDArray[np.float64], resources: ContendedResources,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds that blocks lose next to one collective: the share of the device that it takes, while both run."""
    start_s, end_s = times_s
    begin_s, finish_s = start_s[issued.row], end_s[issued.row]
    lasts_s = finish_s - begin_s
    if lasts_s <= 0:
        return np.zeros(len(rows))
    both_s = np.clip(np.minimum(end_s[rows], finish_s) - np.maximum(start_s[rows], begin_s), 0.0, None)
    per_byte = MEMORY_BYTES_PER_BUS_BYTE.get(issued.op, _USUAL_MEMORY_BYTES)
    memory_Bps = np.full(len(rows), per_byte * issued.bus_bytes / lasts_s)
    moved_W = np.full(len(rows), joules_per_bus_byte(per_byte) * issued.bus_bytes / lasts_s)
    share = resources.taken(memory_Bps, moved_W, bound)
    # a kernel that outlasts the collective loses the share of the collective's time
    return np.asarray(share * both_s)
