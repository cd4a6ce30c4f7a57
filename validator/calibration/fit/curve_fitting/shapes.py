"""What curves of time by size there are: a wait, bytes at a rate, perhaps another wait and rate for larger messages.

A message of k bytes takes

    wait + Σ further waits of the protocols that k reaches + max(overhead, Σ bytes in each protocol's range · seconds per byte)

and of messages sent one behind the other without waiting, one arrives every max(overhead, Σ ...). With one protocol and no
overhead this is α + β·k (Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994); with an overhead it is
LogGP (Alexandrov, Ionescu, Schauser & Scheiman, "LogGP", SPAA 1995) as the simulator plays it, where the overhead passes while
bytes move. All coefficients are above zero, so that no larger message is ever faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleproof.validator.calibration.fit.curve_fitting.robust import Array, Curve, Mask

# What a coefficient brings at least, as a share of some time, where the search starts: nothing could not grow.
_LEAST: Final = 1e-2


class Segment(NamedTuple):
    """What messages of more than `from_bytes` bytes take: latency_s + size · seconds_per_byte."""

    from_bytes: float
    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True)
class MeasuredRows:
    """Measured times, one row each. points: which of the user's points it is of. streamed: whether per message of a stream."""

    points: npt.NDArray[np.int64]
    sizes: Array
    seconds: Array
    streamed: Mask

    def chosen(self, mask: Mask) -> MeasuredRows:
        return MeasuredRows(self.points[mask], self.sizes[mask], self.seconds[mask], self.streamed[mask])


@dataclass(frozen=True)
class Shape:
    """breaks: sizes beyond which another protocol begins. Its coefficients: waits, seconds per byte, then the overhead."""

    breaks: tuple[float, ...] = ()
    has_overhead: bool = False

    @property
    def protocols(self) -> int:
        return len(self.breaks) + 1

    @property
    def coefficients(self) -> int:
        return 2 * self.protocols + self.has_overhead

    def curve(self, rows: MeasuredRows) -> Curve:
        """Seconds of each row as a function of coefficients."""
        waits, moved = self._waits(rows), self._moved(rows)
        protocols = self.protocols

        def evaluate(coefficients: Array) -> tuple[Array, Array]:
            each = coefficients[..., None, :]
            parts = [waits * each[..., :protocols], moved * each[..., protocols : 2 * protocols]]
            moving = parts[1].sum(-1, keepdims=True)
            if self.has_overhead:
                overhead = each[..., -1:]
                parts[1] = parts[1] * (moving >= overhead)
                parts.append(overhead * (moving < overhead))
            parts_s = np.concatenate(parts, -1)
            seconds = parts_s.sum(-1)
            return seconds, parts_s / seconds[..., None]

        return evaluate

    def start(self, rows: MeasuredRows) -> Array:
        """Coefficients above zero near the best: those with the least squared relative error, by non-negative least squares."""
        from scipy.optimize import nnls

        design = np.concatenate([self._waits(rows), self._moved(rows)], 1) / rows.seconds[:, None]
        largest = design.max(0)
        found = np.maximum(nnls(design / largest, np.ones(len(design)))[0], _LEAST) / largest
        return np.append(found, rows.seconds[rows.streamed].min()) if self.has_overhead else np.asarray(found)

    def segments(self, coefficients: Array) -> tuple[Segment, ...]:
        """The straight lines that the curve is made of, but for the overhead."""
        found: list[Segment] = []
        begins = (0.0, *self.breaks)
        for begin, wait_s, per_byte_s in zip(begins, coefficients, coefficients[self.protocols :], strict=False):
            before_s = found[-1].latency_s + begin * found[-1].seconds_per_byte if found else 0.0
            found.append(Segment(begin, float(before_s + wait_s - begin * per_byte_s), float(per_byte_s)))
        return tuple(found)

    def _waits(self, rows: MeasuredRows) -> Array:
        """1 where a message reaches a protocol and is not one of a stream."""
        begins = np.array([0.0, *self.breaks])
        return np.asarray((rows.sizes[:, None] > begins) & ~rows.streamed[:, None], dtype=float)

    def _moved(self, rows: MeasuredRows) -> Array:
        """Bytes of each message in each protocol's range."""
        begins = np.array([0.0, *self.breaks])
        ends = np.array([*self.breaks, np.inf])
        return np.asarray(np.clip(rows.sizes[:, None] - begins, 0, ends - begins))
