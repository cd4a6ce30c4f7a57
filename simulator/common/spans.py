"""Spans: intervals of each rank's work, waiting and communication, as columns; and unions of time intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import UNKNOWN
from scaleproof.simulator.common.csr import in_order


class Phase(IntEnum):
    """The kind of work, communication or waiting in a span."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    SYNCHRONISE = 3
    SEND = 4
    RECEIVE = 5
    WAIT = 6
    INPUT = 7

    @property
    def label(self) -> str:
        """The phase's name in lower case."""
        return self.name.lower()


class Stream(IntEnum):
    """MAIN: compute and waiting of a rank, whose spans never overlap. COMMUNICATION: transfers, which overlap with MAIN."""

    MAIN = 0
    COMMUNICATION = 1


COMPUTE_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
COMMUNICATION_PHASES: Final = (Phase.SYNCHRONISE, Phase.SEND, Phase.RECEIVE)
SPAN_COLUMNS: Final[dict[str, type]] = {
    "rank": np.int32,
    "step": np.int32,
    "stream": np.int8,
    "phase": np.int8,
    "stage": np.int32,
    "microbatch": np.int32,
    "arrival_s": np.float64,
    "start_s": np.float64,
    "end_s": np.float64,
    "size_bytes": np.float64,
    "communication": np.int16,
    "message_bytes": np.float64,
    "calls": np.int32,
    "first_layer": np.int32,
    "last_layer": np.int32,
}
# Values of columns that spans may lack, since measurements do not know them.
_ABSENT: Final = {"communication": UNKNOWN, "message_bytes": 0.0, "calls": 0, "first_layer": UNKNOWN, "last_layer": UNKNOWN}


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans as columns of equal length, one row per span.

    arrival_s: the rank is ready; start_s: work or transfer begins; end_s: it is complete. [arrival, start) is waiting for other
    ranks, [start, end) is work or transfer; compute never waits, so that its arrival is its start. A WAIT span is waiting for a
    server from arrival to end, an INPUT span waiting for samples. Times have the same origin on all ranks.
    stage, microbatch: −1 where they do not apply. size_bytes: bytes through the rank.

    communication: dimension and collective, by `simulator.common.communication.number_of`. message_bytes: size of the messages,
    or of the whole buffers of collectives. calls: number of messages or collectives that the span stands for, 0 for waiting.
    first_layer, last_layer: layers that they concern. Measured spans lack these columns.
    """

    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    stream: NDArray[np.int8]
    phase: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    arrival_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    size_bytes: NDArray[np.float64]
    communication: NDArray[np.int16]
    message_bytes: NDArray[np.float64]
    calls: NDArray[np.int32]
    first_layer: NDArray[np.int32]
    last_layer: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rank)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        theirs = other.columns()
        return all(np.array_equal(values, theirs[name]) for name, values in self.columns().items())

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Spans:
        """Spans from any sequences of equal length, one per column; the columns of labels may be absent."""
        length = len(columns["rank"])
        filled = {name: np.full(length, value) for name, value in _ABSENT.items() if name not in columns} | dict(columns)
        return cls(**{name: np.asarray(filled[name], dtype=kind) for name, kind in SPAN_COLUMNS.items()})

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in the order of `SPAN_COLUMNS`."""
        return {name: getattr(self, name) for name in SPAN_COLUMNS}

    def where(self, mask: NDArray[np.bool_]) -> Spans:
        """The rows that `mask` selects."""
        return Spans(**{name: column[mask] for name, column in self.columns().items()})


Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class TimeIntervals(NamedTuple):
    """Time intervals from start to end, each of one owner (a number, zero or more). All arrays have shape (intervals,)."""

    owner: Numbers
    start_s: Times
    end_s: Times

    def union(self) -> TimeIntervals:
        """The union of each owner's intervals: disjoint intervals that do not touch, sorted by owner and start."""
        return self.divided(np.zeros(len(self.owner), dtype=np.int64))[0]

    def divided(self, label: Numbers) -> tuple[TimeIntervals, Numbers]:
        """The union of each owner's intervals, divided so that each instant has the label of the interval that started first.

        label: of each interval. Returns disjoint intervals, sorted by owner and start, and their labels; those that touch have
        different labels.
        """
        order = np.flatnonzero(self.end_s > self.start_s)
        order = order[np.argsort(self.start_s[order], kind="stable")]
        order = order[in_order(self.owner[order])]
        owner, start_s, end_s, label = self.owner[order], self.start_s[order], self.end_s[order], label[order]
        if not len(owner):
            return TimeIntervals(owner, start_s, end_s), label
        is_first = np.diff(owner, prepend=-1) > 0
        covered_s = _running_maximum(end_s, owner)
        begin_s = np.where(is_first, start_s, np.maximum(start_s, np.roll(covered_s, 1)))
        keep = end_s > begin_s
        owner, begin_s, end_s, label = owner[keep], begin_s[keep], end_s[keep], label[keep]
        joins = (owner[1:] == owner[:-1]) & (label[1:] == label[:-1]) & (begin_s[1:] == end_s[:-1])
        first, last = np.append(True, ~joins), np.append(~joins, True)
        return TimeIntervals(owner[first], begin_s[first], end_s[last]), label[first]


def _running_maximum(values: Times, owner: Numbers) -> Times:
    """The maximum of the values of an owner up to each. owner: in ascending order."""
    if owner[0] == owner[-1]:
        return np.maximum.accumulate(values)
    # as whole numbers, to which those of earlier owners are lower; of 64 bits, since their product may exceed 32
    owner = owner.astype(np.int64)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    highest = np.maximum.accumulate(rank + owner * len(values)) - owner * len(values)
    result: Times = values[order][highest]
    return result
