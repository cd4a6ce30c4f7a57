"""What `faults SCENARIO --out` writes: runs along events of hosts, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.common.errors import InputError, one_line

EVENTS_FILE: Final = "events.json"


class RunRow(BaseModel):
    """A time, predicted and measured."""

    name: str
    predicted_s: FiniteFloat
    measured_s: FiniteFloat
    low_s: FiniteFloat | None = None
    high_s: FiniteFloat | None = None


class RunState(BaseModel):
    """The final state in words, and the loss of each step."""

    words: str
    right: bool
    losses: tuple[FiniteFloat, ...]


class ElasticRun(BaseModel):
    """A run along events."""

    model_config = ConfigDict(allow_inf_nan=False)

    on: str
    predicted: ElasticTimeline
    measured: ElasticTimeline
    rows: tuple[RunRow, ...]
    state: RunState
    warning: str = ""

    @property
    def error(self) -> float:
        """Relative error of the predicted total time."""
        return self.predicted.total_s / self.measured.total_s - 1.0

    @property
    def finding(self) -> str:
        """The result in a line."""
        lost = [str(sum(change.lost_steps for change in side.changes)) for side in (self.predicted, self.measured)]
        predicted, measured = (f"{side.total_s:.1f} s" for side in (self.predicted, self.measured))
        return f"{predicted} predicted, {measured} measured; steps lost: {' and '.join(lost)}"


class _File(BaseModel):
    events: tuple[ElasticRun, ...]
    provenance: dict[str, str] = {}


def read(folder: Path) -> tuple[tuple[ElasticRun, ...], dict[str, str]]:
    """The runs of a folder and where they were measured. Raises InputError if they cannot be read."""
    path = folder / EVENTS_FILE
    try:
        found = _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with --out {folder}") from None
    return found.events, found.provenance
