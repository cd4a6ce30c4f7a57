"""The steady step of a rank class as a sequence of events: launches, communication, and waits of streams and of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scaleproof.simulator.captured.kernels import KernelTime
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.spans import Phase


class Launch(NamedTuple):
    """A kernel that the host launches on a stream. extra_kernels: launched in addition to one."""

    stream: int
    phase: Phase
    time: KernelTime


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


Event = Launch | IssuedCollective | IssuedMessage | RecordedEvent | Wait


@dataclass(frozen=True)
class RankTrace:
    """Events of a rank class in the order of its host. ranks: of the class. played: the rank whose script ran. places: of
    events among all recorded ones, of which those without duration are left out."""

    name: str
    ranks: Sequence[int]
    played: int
    events: Sequence[Event]
    places: Sequence[int] = ()
