"""Runs along events as `faults` writes them: the predicted and the measured timeline, row by row, and the final state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from pydantic import Field

from scaleproof.simulator.analysis.elastic.timeline import PARTS, ElasticTimeline, HostChange
from scaleproof.simulator.common.record import Record

# File of the runs in their folder.
FILE: Final = "events.json"
_LOSS_TOLERANCE: Final = 1e-3
# Rows of a change: name, and the field in seconds.
_CHANGE_ROWS: Final = (
    ("detection", "detection_s"),
    ("new group", "group_s"),
    ("start", "start_s"),
    ("restore", "restore_s"),
)

# Shorter parts are left out.
_SHORTEST_S: Final = 1e-4


class StateCheck(Record):
    """The final state. equal: whether parameters are equal over ranks, to the last bit. deviation: of the parameters from those
    of one process, relative to their change; tolerance: what rounding explains. loss_deviation: largest relative deviation of a
    step's loss. losses: loss of each step, the last one where a step was taken again."""

    derived: ClassVar = ("words", "right")

    equal: bool
    deviation: float
    tolerance: float
    loss_deviation: float
    losses: tuple[float, ...]

    @property
    def right(self) -> bool:
        """Whether ranks agree, and trained as one process does."""
        return self.equal and self.deviation <= self.tolerance and self.loss_deviation <= _LOSS_TOLERANCE

    @property
    def words(self) -> str:
        """The result in words."""
        equal = "equal on all ranks" if self.equal else "different between ranks, which is wrong"
        text = (
            f"{equal}, off by {self.deviation:.2g} from one process with the same batches; losses by {self.loss_deviation:.2g}"
        )
        return text if self.right else f"{text}, which is wrong"


class TimeComparison(Record):
    """A time, predicted and measured. low_s, high_s: 5th and 95th percentile of the prediction's draws, if it has any."""

    derived: ClassVar = ("error",)

    name: str
    predicted_s: float
    measured_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction; 0 where both are, None where only the measured time is."""
        if self.measured_s == 0:
            return 0.0 if self.predicted_s == 0 else None
        return self.predicted_s / self.measured_s - 1.0


class ElasticOutcome(Record):
    """A run along events. on: where the job trained. parts: names of the parts of the time. warning: about the measurement, if
    any."""

    derived: ClassVar = ("rows",)

    on: str
    predicted: ElasticTimeline
    measured: ElasticTimeline
    state: StateCheck
    parts: tuple[str, ...] = PARTS
    warning: str = ""

    @property
    def rows(self) -> tuple[TimeComparison, ...]:
        """Times of each stretch and change in order, and the total."""
        return tuple(self._rows())

    @property
    def follows(self) -> bool:
        """Whether the run went through the same changes as the prediction."""
        return [one.causes for one in self.predicted.changes] == [one.causes for one in self.measured.changes]

    @property
    def total_error(self) -> float:
        """Relative error of the predicted total time."""
        return self.predicted.total_s / self.measured.total_s - 1.0

    def _rows(self) -> Iterator[TimeComparison]:
        sides = (self.predicted, self.measured)
        if self.follows:
            for place, (one, other) in enumerate(zip(*(side.stretches for side in sides), strict=True)):
                yield TimeComparison(name=f"step on {one.hosts} hosts", predicted_s=one.step_s, measured_s=other.step_s)
                if place < len(self.predicted.changes):
                    yield from _change_rows(place + 1, *(side.changes[place] for side in sides))
        yield TimeComparison(name="whole run", predicted_s=self.predicted.total_s, measured_s=self.measured.total_s)


class ElasticRecord(Record):
    """All runs along events, and where they were measured."""

    events: tuple[ElasticOutcome, ...]
    provenance: dict[str, str] = Field(default_factory=dict)


def _change_rows(number: int, predicted: HostChange, measured: HostChange) -> Iterator[TimeComparison]:
    """Lost work, the pause and its parts, and both together, as far as there are any."""

    def compared(name: str, predicted_s: float, measured_s: float, *ends_s: float) -> Iterator[TimeComparison]:
        if max(predicted_s, measured_s) > _SHORTEST_S:
            low_s, high_s = ends_s or (None, None)
            yield TimeComparison(name=name, predicted_s=predicted_s, measured_s=measured_s, low_s=low_s, high_s=high_s)

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
