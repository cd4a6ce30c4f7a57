"""Outcome of a fault, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.elastic.measured import Loss
from scaleproof.proof.elastic.predicted import FaultForecast

_EDGES: Final = (0.05, 0.95)


@dataclass(frozen=True)
class TimeComparison:
    """A time, predicted and measured. low_s, high_s: 5th and 95th percentile of the prediction's draws, if it has any."""

    name: str
    predicted_s: float
    measured_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the prediction; 0 where both are, infinite where only the measured time is."""
        if self.measured_s == 0:
            return 0.0 if self.predicted_s == 0 else math.inf
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class FaultOutcome:
    """name: of the fault. description: description of the fault. state: of the final parameters. right: whether they are right.
    warning: about the measurement, if any."""

    name: str
    description: str
    rows: tuple[TimeComparison, ...]
    state: str
    right: bool
    warning: str = ""

    def plain(self) -> dict[str, Any]:
        """The outcome as plain data for JSON."""
        rows = [asdict(row) | {"error": row.error} for row in self.rows]
        return asdict(self) | {"rows": rows}


def loss_rows(forecast: FaultForecast, loss: Loss) -> Iterator[TimeComparison]:
    """Rows for detection, restart with its parts if it has any, lost work, and the total."""
    yield _drawn("detection", forecast.detection_s, loss.detection_s)
    yield TimeComparison("restart", float(forecast.restart_s.mean()), loss.restart_s)
    if loss.meeting_s > 0:
        yield _drawn("  rendezvous", forecast.meeting_s, loss.meeting_s)
        yield TimeComparison("  processes", float(forecast.start_s.mean()), loss.start_s)
    yield TimeComparison("lost work", float(forecast.work_s.mean()), loss.work_s)
    yield TimeComparison("lost in all", float(forecast.all_s.mean()), loss.all_s)


def _drawn(name: str, drawn_s: NDArray[np.float64], measured_s: float) -> TimeComparison:
    low_s, high_s = (float(np.quantile(drawn_s, edge)) for edge in _EDGES)
    return TimeComparison(name, float(drawn_s.mean()), measured_s, low_s, high_s)
