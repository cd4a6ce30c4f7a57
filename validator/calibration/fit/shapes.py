"""Models of time by size: a wait, bytes at a rate, and possibly a further wait and another rate for larger messages.

A message of k bytes takes

    wait + Σ further waits of the protocols that k reaches + max(overhead, Σ bytes in each protocol's range · seconds per byte)

and of messages sent in a row without waiting, one arrives every max(overhead, Σ ...). With one protocol and no overhead this is
α + β·k (Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994); with an overhead it is LogGP (Alexandrov,
Ionescu, Schauser & Scheiman, "LogGP", SPAA 1995) as the simulator implements it, with the overhead concurrent with the
transfer. All coefficients are positive, so a larger message is never faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleproof.validator.estimation.lines import nonnegative
from scaleproof.validator.estimation.posterior import Array, LogModel, Mask

# Relative deviations of repetitions on a quiet machine; larger ones are not such noise.
NOISE: Final = 0.05
# Smallest contribution of a coefficient at the start of the search, as a share of a time: from zero it could not grow.
_LEAST: Final = 1e-2


class Segment(NamedTuple):
    """Line for messages of more than `from_bytes` bytes, which take latency_s + size · seconds_per_byte seconds."""

    from_bytes: float
    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True)
class MeasuredRows:
    """Measured times, one row each. points: index of the user's point. streamed: whether the time is per message of a
    stream."""

    points: npt.NDArray[np.int64]
    sizes: Array
    seconds: Array
    streamed: Mask

    def chosen(self, mask: Mask) -> MeasuredRows:
        """The rows that a mask selects."""
        return MeasuredRows(self.points[mask], self.sizes[mask], self.seconds[mask], self.streamed[mask])


@dataclass(frozen=True)
class Shape:
    """breaks: sizes above which another protocol begins. Coefficients: waits, seconds per byte, then the overhead. Models have
    their logarithms, so that none is negative."""

    breaks: tuple[float, ...] = ()
    has_overhead: bool = False

    @property
    def protocols(self) -> int:
        """Number of protocols, one more than breaks."""
        return len(self.breaks) + 1

    @property
    def coefficients(self) -> int:
        """Number of coefficients: latency and slope of each protocol, and the overhead if there is one."""
        return 2 * self.protocols + self.has_overhead

    def model(self, rows: MeasuredRows) -> LogModel:
        """The logarithm of the seconds of each row, and its derivatives: the share of each coefficient in the seconds."""
        waits, moved = self._waits(rows), self._moved(rows)
        protocols = self.protocols

        def evaluate(logs: Array) -> tuple[Array, Array]:
            columns = np.exp(logs[..., None, :])
            parts = [waits * columns[..., :protocols], moved * columns[..., protocols : 2 * protocols]]
            moving = parts[1].sum(-1, keepdims=True)
            if self.has_overhead:
                overhead = columns[..., -1:]
                parts[1] = parts[1] * (moving >= overhead)
                parts.append(overhead * (moving < overhead))
            parts_s = np.concatenate(parts, -1)
            seconds = parts_s.sum(-1)
            return np.log(seconds), parts_s / seconds[..., None]

        return evaluate

    def start(self, rows: MeasuredRows) -> Array:
        """Logarithms of coefficients near the best: the least sum of squared relative errors."""
        design = np.concatenate([self._waits(rows), self._moved(rows)], 1) / rows.seconds[:, None]
        solution = np.maximum(nonnegative(design, np.ones(len(design))), _LEAST / design.max(0))
        overhead_s = [rows.seconds[rows.streamed].min()] if self.has_overhead else []
        return np.asarray(np.log([*solution, *overhead_s]))

    def segments(self, coefficients: Array) -> tuple[Segment, ...]:
        """The line segments of the curve, without the overhead."""
        segments: list[Segment] = []
        begins = (0.0, *self.breaks)
        for begin, wait_s, per_byte_s in zip(begins, coefficients, coefficients[self.protocols :], strict=False):
            before_s = segments[-1].latency_s + begin * segments[-1].seconds_per_byte if segments else 0.0
            segments.append(Segment(begin, float(before_s + wait_s - begin * per_byte_s), float(per_byte_s)))
        return tuple(segments)

    def _waits(self, rows: MeasuredRows) -> Array:
        """1 for messages that reach a protocol and are not part of a stream, otherwise 0, shape (rows, protocols)."""
        begins = np.array([0.0, *self.breaks])
        return np.asarray((rows.sizes[:, None] > begins) & ~rows.streamed[:, None], dtype=float)

    def _moved(self, rows: MeasuredRows) -> Array:
        """Bytes of each message in each protocol's range, shape (rows, protocols)."""
        begins = np.array([0.0, *self.breaks])
        ends = np.array([*self.breaks, np.inf])
        return np.asarray(np.clip(rows.sizes[:, None] - begins, 0, ends - begins))
