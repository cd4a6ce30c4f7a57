"""Spans: intervals of each rank's work, waiting and communication, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import UNKNOWN


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
