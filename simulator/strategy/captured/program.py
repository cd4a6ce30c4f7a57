"""Program of a captured step: the tasks of all rank classes, with their collectives and messages matched.

The tasks of a rank class are blocks of kernels on its streams, the host that launches them, and its communication. A block is a
sequence of kernels that the host launches on one stream without anything between them that other streams or ranks could wait
for. The i-th of n kernels starts when the one before it has ended and the host has launched it. So a block ends at the later of
two times: the sum K of its kernels after the stream is free, and P after the host began to launch it, where P = max over i of
(launches 1 to i, then kernels i to n). Each block is a task of K seconds on its stream, one of P seconds that occupies no
stream, and one of its launches on the host's stream.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.kernels import KernelTime, KernelTimes
from scaleproof.simulator.captured.record import NONE, EventKind
from scaleproof.simulator.captured.script import LAUNCHES, CapturedClass, CapturedScript
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.collectives.cost import rendezvous_s
from scaleproof.simulator.cluster.collectives.groups import Group, Op, bus_factor, passed_bytes
from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import replay
from scaleproof.simulator.program import MAIN_STREAM, Path, Program, ProgramBuilder
from scaleproof.simulator.strategy.data_parallel.contention import (
    MEMORY_BYTES_PER_BUS_BYTE,
    ContendedResources,
    joules_per_bus_byte,
)
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.step_builder import StepBuilder

# The stream of the host, and the first of other streams of a rank.
HOST_STREAM: Final = 2
_FIRST_SIDE: Final = 3
_MOST_STREAMS: Final = 63
# Of work that the device does anyway: no resource, at one second per second.
_NO_PATH: Final = Path(0.0, 1.0)
# Dimensions whose collectives are inside layers, and start with no receives queued in the network.
_INSIDE: Final = (Dimension.TENSOR, Dimension.SEQUENCE, Dimension.CONTEXT, Dimension.EXPERT)
# Bytes of memory that collectives move per byte on the bus, where nothing else is stated: read and written.
_USUAL_MEMORY_BYTES: Final = 2.0
# Streams of the groups whose collectives a rank leads begin here; those of its kernels are below.
_FIRST_GROUP_STREAM: Final = 64
_MOST_GROUPS: Final = 63
_STEPS: Final = 2
# Phases of communication, and of waiting for it.
_COMMUNICATES: Final = {
    EventKind.COLLECTIVE: Phase.SYNCHRONISE, EventKind.SEND: Phase.SEND, EventKind.RECEIVE: Phase.RECEIVE,
}  # fmt: skip
# Events by which the host waits.
_HOST_WAITS: Final = (EventKind.ITEM, EventKind.SYNCHRONIZE)
# Events without a task.
_NO_TASK: Final = (EventKind.ALLOCATE, EventKind.FREE, EventKind.STEP)
# Tasks of communication or of recorded events by their numbers, with the phase of waiting for them if they communicate.
_Known = dict[int, tuple[Sequence[int], Phase | None]]


class HostCosts(NamedTuple):
    """Seconds of the host per kernel and per collective, and whether it waits for each kernel. runs_script: whether the
    script's own code takes the time that was captured, as on the machine on which operators were timed. copies: whether copies
    between device and host share the links of the cluster's hosts."""

    kernel_s: float
    collective_s: float
    blocks: bool
    runs_script: bool = False
    copies: bool = False


class KernelBlock(NamedTuple):
    """A block of kernels: its task on its stream, the seconds of each kernel, their share that memory bandwidth bounds, whether
    it is on the main stream, and the rows of the class's events that launch them."""

    row: int
    seconds: Sequence[float]
    moves: float
    is_main: bool
    events: Sequence[int]

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels."""
        return sum(self.seconds)


def compile_captured(strategy: CapturedStrategy, job: Job) -> Program:
    """Compiles the recorded step."""
    return assembled_script(strategy.script, job, strategy.workers).program


def assembled_script(script: CapturedScript, job: Job, replicas: int) -> Assembly:
    """The program of a step on a job's cluster with a number of replicas, and the tasks of each rank class."""
    times = KernelTimes(job.cluster.device, job.framework)
    runs_script = times.device == script.timed_on
    copies = job.cluster.node.host is not None and not times.blocks_host
    host = HostCosts(times.launch_host_s, times.collective_host_s, times.blocks_host, runs_script, copies)
    kernels = [script.kernel_times(rank_class, times) for rank_class in script.classes]
    return assemble(script.resized(replicas), kernels, job, host)


def assemble(classes: Sequence[CapturedClass], kernels: Sequence[Sequence[KernelTime]], job: Job, host: HostCosts) -> Assembly:
    """The program of all rank classes, with the tasks of each. kernels: times of each class's operators.

    Kernels next to collectives of gradients take longer, as far as the device is shared: when they overlap follows from a
    replay without contention.

    Raises InputError for messages without counterpart.
    """
    built = Assembly(classes, kernels, job, host, {})
    resources = ContendedResources.of_job(job)
    if resources is None or not built.issued:
        return built
    return Assembly(classes, kernels, job, host, _longer_s(built, resources))


class _Chain:
    """What the next task of a stream follows: rows in this step, and whether communication is among them."""

    __slots__ = ("communicates", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.communicates: Phase | None = None


class RankTasks:
    """Adds the tasks of a rank class to a program.

    kernels: times of the class's operators; scale: factor on their seconds. longer_s: seconds by which each block takes longer,
    in order; none if empty. communicate: adds the collective or message of a row after some tasks, and returns its task.
    blocks: those added so far; streams: numbers in the program of recorded streams.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        rank: int,
        of: CapturedClass,
        host: HostCosts,
        kernels: Sequence[KernelTime],
        scale: float,
        longer_s: Sequence[float],
        communicate: Callable[[int, Sequence[int]], int],
    ) -> None:
        self._builder, self._rank, self._host, self._kernels, self._scale = builder, rank, host, kernels, scale
        self._communicate = communicate
        self._longer_s = itertools.chain(longer_s, itertools.repeat(0.0))
        self._events, self._main = of.events, of.main_stream
        self.streams: dict[int, int] = {self._main: MAIN_STREAM}
        self._chains: defaultdict[int, _Chain] = defaultdict(_Chain)
        # of the open block: rows of the events, and their seconds
        self._open: list[tuple[int, float]] = []
        self._works: _Known = {}
        self._recorded: _Known = {}
        self._later: list[tuple[int, _Known, int]] = []
        self._host_row = -1
        self.blocks: list[KernelBlock] = []

    def add(self) -> None:
        """Adds the events of the class."""
        events = self._events
        update = events.first_update
        if not self._host.blocks:
            # follows the host's last task of the previous step
            self._host_row = self._builder.compute(self._rank, Phase.WAIT, 0.0, stream=HOST_STREAM)
        for row in range(len(events.kind)):
            if row == update:
                self._wait_for_sums(events.stream[row])
            self._add(row)
        if update == len(events.kind):
            self._wait_for_sums(0)
        self._close()
        self._finish()

    def _add(self, row: int) -> None:
        kind = self._events.kind[row]
        if kind in _NO_TASK:
            return
        copies = self._host.copies and kind is EventKind.COPY and self._events.dimension[row] is not None
        if kind in LAUNCHES and not copies:
            self._launch(row)
            return
        self._close()
        if kind in _COMMUNICATES:
            self._issue(row)
        elif kind is EventKind.EVENT_RECORD:
            chain = self._begun(self._events.stream[row])
            self._recorded[self._events.event[row]] = list(chain.rows), chain.communicates
        elif kind is EventKind.COPY:
            self._copy(row)
        elif kind is EventKind.HOST_UPDATE:
            updated = self._communicate(row, self._begun(self._main).rows if self._host.blocks else [self._host_row])
            self._follow(self._main, [updated], Phase.OPTIMIZER)
            self._host_waits([updated])
        else:
            self._wait(row)

    def _launch(self, row: int) -> None:
        """Adds a kernel to the open block, or to a new one; nothing for operators that take no time."""
        events = self._events
        seconds = self._kernels[events.operator[row]].seconds + (events.host_s[row] if self._host.runs_script else 0.0)
        if not seconds:
            return
        if self._open:
            last, _ = self._open[-1]
            if (self._stream(events.stream[row]), events.phase[row]) != (self._stream(events.stream[last]), events.phase[last]):
                self._close()
        self._open.append((row, seconds))

    def _stream(self, recorded: int) -> int:
        """The recorded stream that work runs on: a host that computes has one stream."""
        return self._main if self._host.blocks else recorded

    def _close(self) -> None:
        """Adds the open block."""
        launches, self._open = self._open, []
        if not launches:
            return
        events, rows = self._events, [row for row, _ in launches]
        stream, phase, kernel_s = self._stream(events.stream[rows[0]]), events.phase[rows[0]], self._host.kernel_s
        seconds = [self._scale * work_s + kernel_s * self._host.blocks for _, work_s in launches]
        total_s, longer_s = sum(seconds), next(self._longer_s)
        chain, begins = self._chains[stream], self._host_row
        after = self._announced(chain, stream)
        task = self._task(stream, phase, total_s + longer_s, after)
        moved_s = sum(work_s for work_s, row in zip(seconds, rows, strict=True) if self._kernels[events.operator[row]].moves)
        share = moved_s / total_s if total_s else 0.0
        self.blocks.append(KernelBlock(task, seconds, share, self._number(stream) == MAIN_STREAM, rows))
        chain.rows, chain.communicates = [task], None
        if not self._host.blocks:
            path_s, launches_s = longest_s(seconds, kernel_s) + longer_s, kernel_s * len(launches)
            self._host_row = self._builder.compute(self._rank, phase, launches_s, [begins], stream=HOST_STREAM)
            chain.rows.append(self._builder.background(self._rank, path_s, _NO_PATH, phase, [begins]))

    def _begun(self, recorded: int) -> _Chain:
        """What the next task of a stream follows; at the beginning of a step, the stream's last task of the step before."""
        stream = self._stream(recorded)
        chain = self._chains[stream]
        if not chain.rows:
            chain.rows = [self._task(stream, Phase.WAIT, 0.0, ())]
        return chain

    def _announced(self, chain: _Chain, stream: int) -> list[int]:
        """What the next task of a stream follows. A wait for communication is a task of its own, so that it counts as such."""
        if chain.communicates is None or self._number(stream) != MAIN_STREAM:
            return chain.rows
        return [self._task(stream, chain.communicates, 0.0, chain.rows)]

    def _task(self, stream: int, phase: Phase, work_s: float, after: Sequence[int]) -> int:
        number = self._number(stream)
        return self._builder.compute(self._rank, phase, work_s, tuple(after), stream=number)

    def _number(self, stream: int) -> int:
        """The number of a recorded stream in the program."""
        if stream not in self.streams:
            self.streams[stream] = min(_MOST_STREAMS, _FIRST_SIDE + len(self.streams))
        return self.streams[stream]

    def _issue(self, row: int) -> None:
        """Issues communication, which follows the stream that it is issued on."""
        events = self._events
        after = list(self._begun(events.stream[row]).rows)
        if not self._host.blocks:
            self._host_row = self._builder.compute(
                self._rank, events.phase[row], self._host.collective_s, [self._host_row], stream=HOST_STREAM
            )
            after.append(self._host_row)
        task, phase = self._communicate(row, after), _COMMUNICATES[events.kind[row]]
        tasks, _ = self._works.get(events.work[row], ((), phase))
        self._works[events.work[row]] = [*tasks, task], phase

    def _copy(self, row: int) -> None:
        """Copies between device and host, in the order of a stream."""
        events, chain = self._events, self._begun(self._events.stream[row])
        self._host_row = self._builder.compute(
            self._rank, events.phase[row], self._host.kernel_s, [self._host_row], stream=HOST_STREAM
        )
        after = self._announced(chain, self._stream(events.stream[row]))
        chain.rows = [self._communicate(row, [*after, self._host_row])]
        chain.communicates = Phase.SEND if events.dimension[row] == Dimension.TO_HOST else Phase.RECEIVE

    def _wait(self, row: int) -> None:
        """Adds a wait for communication, for an event, or for the work so far of a stream or, with NONE, of all streams."""
        events = self._events
        kind, stream = events.kind[row], events.stream[row]
        waiting = None if kind in _HOST_WAITS else stream
        if events.work[row] != NONE:
            self._wait_for(waiting, self._works, events.work[row])
        elif events.event[row] != NONE:
            self._wait_for(waiting, self._recorded, events.event[row])
        else:
            awaited = stream if kind is EventKind.ITEM else events.other_stream[row]
            chains = list(self._chains.values()) if awaited == NONE else [self._begun(awaited)]
            phases = [chain.communicates for chain in chains if chain.communicates is not None]
            self._follow(waiting, [task for chain in chains for task in chain.rows], phases[0] if phases else None)

    def _wait_for_sums(self, stream: int) -> None:
        """Makes the optimizer wait for sums that the script never waits for itself."""
        for work in self._events.never_waited:
            self._close()
            self._wait_for(stream, self._works, work)

    def _wait_for(self, stream: int | None, known: _Known, number: int) -> None:
        """Makes a stream, or the host if it is None, wait for communication or for a recorded event."""
        tasks, phase = known.get(number, ((), None))
        self._follow(stream, tasks, phase)
        if number not in known and stream is not None:
            # it is the one of the step before, of communication: scripts have nothing else that lasts over steps
            chain = self._chains[self._stream(stream)]
            chain.rows.append(self._task(self._stream(stream), Phase.SYNCHRONISE, 0.0, chain.rows))
            self._later.append((chain.rows[-1], known, number))

    def _follow(self, stream: int | None, tasks: Sequence[int], phase: Phase | None) -> None:
        """Makes a stream, or the host if it is None, follow some tasks. phase: of the waiting, if it is for communication."""
        if stream is None:
            self._host_waits(tasks)
            return
        chain = self._chains[self._stream(stream)]
        chain.rows = list(dict.fromkeys([*chain.rows, *tasks]))
        chain.communicates = phase if phase is not None else chain.communicates

    def _host_waits(self, rows: Sequence[int]) -> None:
        """Makes the host wait, and with it all later launches."""
        if self._host.blocks:
            # all streams are the host's own
            chain = self._chains[self._main]
            chain.rows = list(dict.fromkeys([*chain.rows, *rows]))
            return
        self._host_row = self._builder.compute(self._rank, Phase.WAIT, 0.0, [self._host_row, *rows], stream=HOST_STREAM)

    def _finish(self) -> None:
        """Adds what the next step follows: waits at the end of a step, ends of blocks, and what it was waiting for."""
        for stream, chain in list(self._chains.items()):
            if chain.rows:
                self._task(stream, chain.communicates or Phase.OPTIMIZER, 0.0, chain.rows)
        for row, known, number in self._later:
            if number in known:
                self._builder.carry(row, known[number][0])


def longest_s(kernels_s: Sequence[float], launch_s: float) -> float:
    """Seconds from the first launch to the end of kernels that wait for their launches and for one another, in order."""
    end_s = 0.0
    for number, kernel_s in enumerate(kernels_s, start=1):
        end_s = max(end_s, number * launch_s) + kernel_s
    return end_s


class _Added(NamedTuple):
    """A collective in the program: its row, members, and what it moves."""

    row: int
    members: tuple[int, ...]
    op: Op
    bus_bytes: float


class Assembly:
    """Adds all rank classes to a program. longer_s: seconds by which the blocks of each class take longer. tasks: those of each
    class."""

    def __init__(
        self,
        classes: Sequence[CapturedClass],
        kernels: Sequence[Sequence[KernelTime]],
        job: Job,
        host: HostCosts,
        longer_s: dict[int, Sequence[float]],
    ) -> None:
        self._job, self._classes, self._devices = job, classes, job.cluster.node.devices
        self._builder = StepBuilder(job)
        self._class_of = {rank: number for number, rank_class in enumerate(classes) for rank in rank_class.ranks}
        self._group_streams: dict[tuple[int, str], int] = {}
        self._matched: dict[tuple[object, ...], int] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._ends: defaultdict[tuple[object, ...], set[bool]] = defaultdict(set)
        self.issued: list[_Added] = []
        self.tasks: list[RankTasks] = []
        ranks = [self._add_rank(rank_class) for rank_class in classes]
        for number, rank_class in enumerate(classes):
            communicate = partial(self._communicate, number)
            tasks = RankTasks(
                self._builder, ranks[number], rank_class, host, kernels[number], job.slowest, longer_s.get(number, ()),
                communicate,
            )  # fmt: skip
            tasks.add()
            self.tasks.append(tasks)
        self._check_messages()
        # kernels next to collectives depend on when they run, so that other prices need another program
        self.program = replace(self._builder.priced(), prices=None)

    def _add_rank(self, rank_class: CapturedClass) -> int:
        node = rank_class.played // self._devices
        # every rank waits for the slowest one in each step, which slows the whole class
        uneven = rank_class.ranks if self._job.unevenness.named else ()
        each = self._ranks_on(node, rank_class)
        return self._builder.add_rank(rank_class.name, rank_class.played, node, each, len(rank_class.ranks), members=uneven)

    def _ranks_on(self, node: int, rank_class: CapturedClass) -> int:
        """Number of a class's ranks on a node."""
        return sum(rank // self._devices == node for rank in rank_class.ranks)

    def _communicate(self, number: int, row: int, after: Sequence[int]) -> int:
        """Adds communication of a class, or what the class's part in it follows if another class has added it."""
        kind = self._classes[number].events.kind[row]
        if kind is EventKind.COLLECTIVE:
            return self._collective(number, row, after)
        if kind is EventKind.HOST_UPDATE:
            return self._host_update(number, row, after)
        return self._host_copy(number, row, after) if kind is EventKind.COPY else self._message(number, row, after)

    def _host_copy(self, number: int, row: int, after: Sequence[int]) -> int:
        """Adds a copy between a device and its host."""
        one = self._classes[number]
        place, dimension, size_bytes = self._place(one.played), one.events.dimension[row], one.events.size_bytes[row]
        assert dimension is not None, "a copy has a direction"
        path = partial(
            ResourceMap.host_copy, place=place, each=self._ranks_on(place[0], one), to_host=dimension == Dimension.TO_HOST
        )
        labels = Communication.of(dimension, "sendrecv", size_bytes)
        return self._builder.transfer(number, number, size_bytes, path, Phase.SEND, after, labels=labels)

    def _host_update(self, number: int, row: int, after: Sequence[int]) -> int:
        """Adds an optimizer's step over the parameters of a rank that its host has."""
        one = self._classes[number]
        node, (moved_bytes, stored_bytes) = self._place(one.played)[0], self._job.host_update_bytes
        each = self._ranks_on(node, one)
        path = partial(ResourceMap.host_update, node=node, each=each, moved_bytes=moved_bytes, stored_bytes=stored_bytes)
        return self._builder.background(number, float(one.events.size[row]), path, Phase.OPTIMIZER, after)

    def _collective(self, number: int, row: int, after: Sequence[int]) -> int:
        events = self._classes[number].events
        op, dimension, size_bytes = events.op[row], events.dimension[row], events.size_bytes[row]
        assert op is not None, "a collective has an operation"
        assert dimension is not None, "a collective has a dimension"
        made = self._classes[number].groups[events.group[row]]
        classes = tuple(sorted({self._class_of[rank] for rank in made.ranks}))
        kind = (op, classes, len(made.ranks), made.name if len(classes) == 1 else "")
        key = (*kind, self._counts[(number, *kind)])
        self._counts[(number, *kind)] += 1
        if len(classes) > 1 and key in self._matched:
            self._builder.follow(self._matched[key], np.array(after, dtype=np.int64))
            return self._matched[key]
        group = Group.of(list(made.ranks), self._devices)
        nodes = sorted({self._classes[one].played // self._devices for one in classes})
        meets = bool(self._job.framework.rendezvous and dimension in _INSIDE)
        path = partial(_collective, op, group, size_bytes, nodes, self._concurrent(number, group), meets)
        task = self._builder.collective(
            classes, passed_bytes(op, group, size_bytes), path, Phase.SYNCHRONISE, after,
            stream=self._group_stream(classes[0], made.name), labels=Communication.of(dimension, op, size_bytes),
        )  # fmt: skip
        self._matched[key] = task
        self.issued.append(_Added(task, classes, op, size_bytes * bus_factor(op, group.size)))
        return task

    def _concurrent(self, number: int, group: Group) -> int:
        """Number of equivalent groups, of other ranks of the same nodes, that communicate at the same time."""
        node = self._classes[number].played // self._devices
        own = sum(rank // self._devices == node and self._class_of[rank] == number for rank in group.ranks)
        return max(1, self._ranks_on(node, self._classes[number]) // max(1, own))

    def _group_stream(self, leader: int, group: str) -> int:
        """The stream of a group's collectives, of the class that leads it."""
        known = self._group_streams
        if (leader, group) not in known:
            own = sum(one == leader for one, _ in known)
            known[leader, group] = _FIRST_GROUP_STREAM + own % _MOST_GROUPS
        return known[leader, group]

    def _message(self, number: int, row: int, after: Sequence[int]) -> int:
        events = self._classes[number].events
        sends, to, tag, size_bytes = (
            events.kind[row] is EventKind.SEND, events.peer[row], events.tag[row], events.size_bytes[row],
        )  # fmt: skip
        if to not in self._class_of:
            raise InputError(f"{self._classes[number].name} exchanges a message with rank {to}, which no class has")
        peer = self._class_of[to]
        ends = (number, peer) if sends else (peer, number)
        side = (*ends, tag, sends)
        key = (*ends, tag, self._counts[side])
        self._counts[side] += 1
        self._ends[key].add(sends)
        if key in self._matched:
            self._builder.follow(self._matched[key], np.array(after, dtype=np.int64))
            return self._matched[key]
        source, target = (self._place(self._classes[one].played) for one in ends)
        if ends[0] == ends[1]:
            played = self._classes[number].played
            source, target = (self._place(rank) for rank in ((played, to) if sends else (to, played)))
        concurrent = self._ranks_on(source[0], self._classes[ends[0]])
        stall_s = self._job.framework.stall_s(-(-len(self._class_of) // self._devices))
        path = partial(
            ResourceMap.concurrent_messages, source=source, target=target, size_bytes=size_bytes, concurrent=concurrent,
            stall_s=stall_s,
        )  # fmt: skip
        task = self._builder.transfer(
            *ends, size_bytes, path, Phase.SEND, after,
            labels=Communication.of(Dimension.PIPELINE, "sendrecv", size_bytes),
        )  # fmt: skip
        self._matched[key] = task
        return task

    def _place(self, rank: int) -> tuple[int, int]:
        """Node and device of a rank."""
        return divmod(rank, self._devices)

    def _check_messages(self) -> None:
        """Raises InputError if a message is sent and not received, or the reverse."""
        for (source, target, _, _), sides in self._ends.items():
            if len(sides) == 1:
                names = self._classes[source].name, self._classes[target].name  # type: ignore[call-overload]
                missing = "receives" if True in sides else "sends"
                raise InputError(f"a message from {names[0]} to {names[1]}: nobody {missing} it; capture both in the same step")


def _collective(
    op: Op, group: Group, size_bytes: float, nodes: Sequence[int], concurrent: int, meets: bool, links: ResourceMap
) -> Path:
    """Path of a collective. meets: whether its ranks meet before it begins."""
    _, path = links.collective(op, group, size_bytes, nodes, concurrent)
    return replace(path, latency_s=path.latency_s + rendezvous_s(group, links.cluster)) if meets else path


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
