"""A captured training script: its rank classes with their operators and events, and what predictions need of them."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.kernels import Certainty, KernelTime, KernelTimes
from scaleproof.simulator.captured.record import EventKind, ProcessGroup
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.model.torch_operators import Work

# Events that launch an operator.
LAUNCHES: Final = (EventKind.OPERATOR, EventKind.COPY)
# Smaller copies between host and device are batches of tokens, which take no time that matters; a round number.
_BATCH_BYTES: Final = 2.0**20


class Operator(NamedTuple):
    """A distinct operator: its name, its work, the precision of its products, and its seconds on the device on which the
    capture's operators were timed, None if it was not."""

    name: str
    work: Work
    precision: str
    timed_s: float | None = None


class Events(NamedTuple):
    """Events of a step in the order of the host: columns as recorded (see `record.COLUMNS`), in the terms of a program. NONE
    and None stand where a column does not apply.

    phase: what is outside of the passes counts with the pass before it. operator: index into the operators of the class.
    module: a path. host_s: seconds of the script's own code before an operator, on the host that captured it. op: of a
    collective. dimension: of a collective, or the direction of a copy between device and host. group: index into the groups of
    the class. size_bytes: of a message, of a copy, or of a collective's whole buffer. size: of an update on the host, its
    parameters.
    """

    kind: Sequence[EventKind]
    stream: Sequence[int]
    phase: Sequence[Phase]
    recomputed: Sequence[int]
    module: Sequence[str]
    operator: Sequence[int]
    host_s: Sequence[float]
    op: Sequence[Op | None]
    dimension: Sequence[Dimension | None]
    group: Sequence[int]
    size_bytes: Sequence[float]
    peer: Sequence[int]
    tag: Sequence[int]
    work: Sequence[int]
    event: Sequence[int]
    other_stream: Sequence[int]
    size: Sequence[int]

    def rows(self, *kinds: EventKind) -> list[int]:
        """Rows of events of some kinds."""
        return [row for row, kind in enumerate(self.kind) if kind in kinds]

    @property
    def uses_host(self) -> bool:
        """Whether the host updates parameters, or more than a batch of tokens is copied between device and host."""
        copied = (self.size_bytes[row] for row in self.rows(EventKind.COPY) if self.dimension[row] is not None)
        return bool(self.rows(EventKind.HOST_UPDATE)) or max(copied, default=0.0) > _BATCH_BYTES

    @property
    def first_update(self) -> int:
        """The row of the optimizer's first operator; that after all others without one."""
        updates = (row for row in self.rows(*LAUNCHES, EventKind.HOST_UPDATE) if self.phase[row] == Phase.OPTIMIZER)
        return next(updates, len(self.kind))

    @property
    def never_waited(self) -> list[int]:
        """Numbers of collectives of the backward pass that the script never waits for itself, as those of DDP's reducer."""
        waited = {self.work[row] for row in self.rows(EventKind.WORK_WAIT, EventKind.SYNCHRONIZE)}
        backward = (row for row in self.rows(EventKind.COLLECTIVE) if self.phase[row] == Phase.BACKWARD)
        return [self.work[row] for row in backward if self.work[row] not in waited]


@dataclass(frozen=True)
class CapturedClass:
    """Ranks that do the same. played: the rank whose script ran, to which the groups belong; main_stream: the stream with most
    of its work. before: what is allocated when the step begins; allocations: allocations and frees of the step, in order."""

    name: str
    ranks: Sequence[int]
    played: int
    main_stream: int
    operators: Sequence[Operator]
    events: Events
    groups: Sequence[ProcessGroup] = ()
    before: Sequence[Allocation | Free] = ()
    allocations: Sequence[Allocation | Free] = ()

    @functools.cached_property
    def counts(self) -> Counter[tuple[int, bool]]:
        """Number of times that each operator runs, by its index and whether it repeats the forward pass."""
        events = self.events
        return Counter((events.operator[row], events.recomputed[row] == 1) for row in events.rows(*LAUNCHES))

    def moved(self, ranks: Sequence[int], replicas: Replicas, to: Replicas) -> Self:
        """The class with other ranks, among other replicas. Raises FieldError if that needs another capture."""
        events = self.events
        used = {events.group[row] for row in events.rows(EventKind.COLLECTIVE)}
        messages = set(events.rows(EventKind.SEND, EventKind.RECEIVE))
        return replace(
            self, ranks=ranks, played=replicas.moved(self.played, to),
            groups=[
                replace(group, ranks=replicas.resized(group.ranks, to)) if number in used else group
                for number, group in enumerate(self.groups)
            ],
            events=events._replace(
                peer=[replicas.moved(peer, to) if row in messages else peer for row, peer in enumerate(events.peer)]
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class Coverage:
    """Shares of the time of kernels by how they are known, which add up to 1, and the operators of unknown cost."""

    measured: float
    extrapolated: float
    unknown: float
    unknown_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CapturedScript:
    """A captured script.

    samples: per step and replica; samples_rule: how their number was found; samples_conflict: what disagrees with it;
    samples_known: whether it is known at all, otherwise it is 1. tokens: of a sample, None if it reads no tokens. replicas: of
    the model, which train on different samples. shards: whether replicas shard parameters or states, so that their number
    decides more than the sizes of groups. device, cluster: names that the capture was made for. timed_on: name of the device on
    which operators were timed.
    """

    name: str
    world_size: int
    replicas: Replicas
    samples: int
    tokens: int | None
    parameters: int
    precision: str
    optimizer: str
    device: str
    cluster: str | None
    shards: bool
    classes: tuple[CapturedClass, ...]
    warnings: tuple[str, ...] = ()
    timed_on: str = ""
    samples_rule: str = ""
    samples_conflict: str = ""
    samples_known: bool = True

    @functools.cached_property
    def uses_host(self) -> bool:
        """Whether the memory of hosts has states or activations of the script."""
        return any(one.events.uses_host for one in self.classes)

    def precision_on(self, known: Collection[str]) -> str:
        """The precision of most FLOPs on a device with rates for the known ones: without TF32, fp32 is exact."""
        return "fp32" if self.precision == "tf32" and "tf32" not in known else self.precision

    def check_replicas(self, count: int) -> None:
        """Raises FieldError for a number of replicas that needs another capture."""
        if count != self.replicas.count and self.shards:
            shards = f"{self.replicas.count} workers shard parameters or states, and {count} would have other shards"
            raise FieldError(("strategy", "workers"), f"{shards}; capture the script again on that many")
        self.resized(count)

    def resized(self, count: int) -> Sequence[CapturedClass]:
        """The rank classes among another number of replicas. Raises FieldError for one that needs another capture."""
        if count == self.replicas.count:
            return self.classes
        to = Replicas(count, self.replicas.inner)
        classes_ranks = self.replicas.resized_classes([one.ranks for one in self.classes], to)
        return [one.moved(ranks, self.replicas, to) for one, ranks in zip(self.classes, classes_ranks, strict=True)]

    def kernel_times(self, of: CapturedClass, times: KernelTimes) -> list[KernelTime]:
        """Times of a class's operators: as timed where that was on this device, otherwise as modelled."""
        modelled = times.times([(one.work, one.precision) for one in of.operators])
        if times.device != self.timed_on:
            return modelled
        return [
            KernelTime(one.timed_s, Certainty.MEASURED, model.moves) if one.timed_s is not None else model
            for one, model in zip(of.operators, modelled, strict=True)
        ]

    def flops(self, replicas: int) -> tuple[float, float]:
        """FLOPs of a step of all ranks: those of the model, and those of recomputation."""
        totals, to = np.zeros(2), Replicas(replicas, self.replicas.inner)
        classes_ranks = self.replicas.resized_classes([one.ranks for one in self.classes], to)
        for one, ranks in zip(self.classes, classes_ranks, strict=True):
            for (operator, again), count in one.counts.items():
                totals[int(again)] += len(ranks) * count * one.operators[operator].work.flops
        return float(totals[0]), float(totals[1])

    def coverage(self, device: Device, framework: Framework) -> Coverage:
        """How the times of kernels on a device are known, over all ranks."""
        times = KernelTimes(device, framework)
        spent, names = np.zeros(len(Certainty)), defaultdict[str, float](float)
        for one in self.classes:
            seconds = self.kernel_times(one, times)
            for (operator, _), count in one.counts.items():
                total_s = len(one.ranks) * count * seconds[operator].seconds
                spent[seconds[operator].known] += total_s
                if seconds[operator].known == Certainty.UNKNOWN:
                    names[one.operators[operator].name] += total_s
        measured, extrapolated, unknown = (spent / spent.sum() if spent.sum() else np.eye(len(Certainty))[0]).tolist()
        return Coverage(measured, extrapolated, unknown, tuple(sorted(names, key=lambda name: -names[name])))
