"""A captured training script: its rank classes with their operators and events, and what predictions need of them."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.kernels import Certainty, KernelTime, KernelTimes
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.model.torch_operators import Work


class Operation(NamedTuple):
    """An operator that the host launches on a stream. operator: index into the operators of its class. again: whether it
    repeats one of the forward pass. module: its path. host_s: seconds of the script's own code before it, on the host that
    captured it."""

    stream: int
    phase: Phase
    operator: int
    again: bool
    module: str = ""
    host_s: float = 0.0


class Operator(NamedTuple):
    """A distinct operator: its name, its work, the precision of its products, and its seconds on the device on which the
    capture's operators were timed, None if it was not."""

    name: str
    work: Work
    precision: str
    timed_s: float | None = None


class IssuedCollective(NamedTuple):
    """A collective that the host issues. ranks: of its group, ascending. size_bytes: of the whole buffer. group: its name,
    which has a stream of its own. work: number by which waits refer to it."""

    stream: int
    phase: Phase
    op: Op
    ranks: Sequence[int]
    size_bytes: float
    group: str
    work: int
    dimension: Dimension


class IssuedMessage(NamedTuple):
    """A message that the host sends to, or receives from, the rank `peer`."""

    stream: int
    phase: Phase
    sends: bool
    peer: int
    size_bytes: float
    tag: int
    work: int


class RecordedEvent(NamedTuple):
    """An event that is recorded on a stream: it is complete when the stream's work so far is."""

    stream: int
    event: int


class Wait(NamedTuple):
    """A stream, or the host if `stream` is None, waits for communication, for an event, or for the work so far of a stream or,
    with `number` −1, of all streams."""

    stream: int | None
    on: Literal["work", "event", "stream"]
    number: int


Event = Operation | IssuedCollective | IssuedMessage | RecordedEvent | Wait


@dataclass(frozen=True)
class CapturedClass:
    """Ranks that do the same. played: the rank whose script ran; main_stream: the stream with most of its work. before: what is
    allocated when the step begins; allocations: allocations and frees of the step, in order."""

    name: str
    ranks: Sequence[int]
    played: int
    main_stream: int
    operators: Sequence[Operator]
    events: Sequence[Event]
    before: Sequence[Allocation | Free] = ()
    allocations: Sequence[Allocation | Free] = ()

    @functools.cached_property
    def counts(self) -> Counter[tuple[int, bool]]:
        """Number of times that each operator runs, by its index and whether it repeats the forward pass."""
        return Counter((event.operator, event.again) for event in self.events if isinstance(event, Operation))


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

    samples: per step and replica; samples_rule: how their number was found; samples_conflict: what disagrees with it. tokens:
    of a sample, None if it reads no tokens. replicas: of the model, which train on different samples. shards: whether replicas
    shard parameters or states, so that their number decides more than the sizes of groups. device, cluster: names that the
    capture was made for. timed_on: name of the device on which operators were timed.
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
        ranks_of = functools.cache(lambda ranks: self.replicas.resized(ranks, to))

        def resized(event: Event) -> Event:
            if isinstance(event, IssuedCollective):
                return event._replace(ranks=ranks_of(tuple(event.ranks)))
            return event._replace(peer=self.replicas.moved(event.peer, to)) if isinstance(event, IssuedMessage) else event

        classes_ranks = self.replicas.resized_classes([one.ranks for one in self.classes], to)
        return [
            replace(one, ranks=ranks, played=self.replicas.moved(one.played, to), events=list(map(resized, one.events)))
            for one, ranks in zip(self.classes, classes_ranks, strict=True)
        ]

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
