"""Outcome of a run along events: the predicted and the measured timeline, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from scaleproof.proof.elastic.events.state_check import StateCheck
from scaleproof.simulator.analysis.elastic.timeline import PARTS, ElasticTimeline, HostChange

# Rows of a change: name, and the field in seconds.
_CHANGE_ROWS: Final = (
    ("detection", "detection_s"),
    ("new group", "group_s"),
    ("start", "start_s"),
    ("restore", "restore_s"),
)

# Shorter parts are left out.
_SHORTEST_S: Final = 1e-4


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
class ElasticOutcome:
    """on: where the job trained. warning: about the measurement, if any."""

    predicted: ElasticTimeline
    measured: ElasticTimeline
    state: StateCheck
    on: str
    warning: str = ""

    @property
    def rows(self) -> tuple[TimeComparison, ...]:
        """Times of each stretch and change in order, and the total."""
        return tuple(self._rows())

    @property
    def follows(self) -> bool:
        """Whether the run went through the same changes as the prediction."""
        return [one.causes for one in self.predicted.changes] == [one.causes for one in self.measured.changes]

    def _rows(self) -> Iterator[TimeComparison]:
        sides = (self.predicted, self.measured)
        if self.follows:
            for place, stretches in enumerate(zip(*(one.stretches for one in sides), strict=True)):
                steps_s = (one.step_s for one in stretches)
                yield TimeComparison(f"step on {stretches[0].hosts} hosts", *steps_s)
                if place < len(self.predicted.changes):
                    yield from _change_rows(place + 1, *(one.changes[place] for one in sides))
        yield TimeComparison("whole run", *(one.total_s for one in sides))

    def plain(self) -> dict[str, Any]:
        """The outcome as plain data for JSON."""
        return {
            "on": self.on,
            "predicted": self.predicted.plain(),
            "measured": self.measured.plain(),
            "rows": [asdict(row) | {"error": row.error if math.isfinite(row.error) else None} for row in self.rows],
            "parts": list(PARTS),
            "state": asdict(self.state) | {"words": self.state.words, "right": self.state.is_right},
            "warning": self.warning,
        }


def _change_rows(number: int, predicted: HostChange, measured: HostChange) -> Iterator[TimeComparison]:
    """Lost work, the pause and its parts, and both together, as far as there are any."""

    def compared(name: str, predicted_s: float, measured_s: float, *range_s: float) -> Iterator[TimeComparison]:
        if max(predicted_s, measured_s) > _SHORTEST_S:
            yield TimeComparison(name, predicted_s, measured_s, *range_s)

    lost_s = predicted.lost_s, measured.lost_s
    yield from compared("lost work", *lost_s)
    yield from compared(f"pause {number}", predicted.pause_s, measured.pause_s)
    for name, field in _CHANGE_ROWS:
        range_s = _group_range_s(predicted) if field == "group_s" else ()
        yield from compared(f"  {name}", getattr(predicted, field), getattr(measured, field), *range_s)
    if max(lost_s) > _SHORTEST_S:
        yield from compared("lost in all", *(one.lost_s + one.pause_s for one in (predicted, measured)))


def _group_range_s(change: HostChange) -> tuple[float, float]:
    """5th and 95th percentile of a predicted new group: only the instants of agents are drawn, which it depends on."""
    rest_s = change.pause_s - change.group_s
    return change.low_s - rest_s, change.high_s - rest_s
