"""Outcome: what came of a fault, predicted and measured, and how it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.units import format_time_s
from scaleproof.validator.experiments.elastic.measured import Loss
from scaleproof.validator.experiments.elastic.predicted import Forecast

_EDGES: Final = (0.05, 0.95)


@dataclass(frozen=True)
class TimeComparison:
    """A time, predicted and measured. low_s, high_s: what 90 % of draws are between, where that is told."""

    name: str
    predicted_s: float
    measured_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def error(self) -> float:
        """How far the forecast is off, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class FaultOutcome:
    """name: of the fault. told: what happened, in words. state: what the parameters are in the end; right: whether they are.
    warning: what to know before it is trusted, if anything."""

    name: str
    told: str
    rows: tuple[TimeComparison, ...]
    state: str
    right: bool
    warning: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        rows = [asdict(row) | {"error": row.error} for row in self.rows]
        return asdict(self) | {"rows": rows}


def loss_rows(forecast: Forecast, loss: Loss) -> Iterator[TimeComparison]:
    """Detection, restart with its parts where it has any, lost work, and all of it."""
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


def text(outcomes: Sequence[FaultOutcome]) -> str:
    """A table for each."""
    return "\n\n".join("\n".join(_lines(outcome)) for outcome in outcomes)


def _lines(outcome: FaultOutcome) -> Iterator[str]:
    yield outcome.name
    yield f"  {outcome.told}"
    yield f"  {'':<16}{'predicted':>10}{'90 % between':>22}{'measured':>11}{'error':>9}"
    for one in outcome.rows:
        between = ""
        if one.low_s is not None and one.high_s is not None:
            between = f"{format_time_s(one.low_s)} to {format_time_s(one.high_s)}"
        figures = f"{format_time_s(one.predicted_s):>10}{between:>22}{format_time_s(one.measured_s):>11}{one.error:>+9.1%}"
        yield f"  {one.name:<16}{figures}"
    yield f"  parameters: {outcome.state}"
