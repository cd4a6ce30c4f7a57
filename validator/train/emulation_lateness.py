"""Lateness: how far from their pace paced ranks were, in a run's measured steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

# A rank that is later than this stays late: one long interruption is not made up for at the cost of all that follows.
MOST_LATE_S: Final = 0.005
# Shares of a run's time up to which lateness is not worth a warning.
_NOTICED_OVERRUN: Final = 0.05
_NOTICED_LATE: Final = 0.03


class Lateness:
    """What a rank notes at the end of its waits. late_s: by how much it is late, which its next wait makes up for."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Forgets what was noted so far; what is late is still made up for."""
        self.paced_s = self.overrun_s = 0.0
        self._waits_s: list[float] = []
        self._began_s = self._ended_s = time.perf_counter()

    def add(self, duration_s: float, until_s: float) -> None:
        """A wait of such a duration is over now, and was to be at `until_s` (of time.perf_counter)."""
        self._ended_s = time.perf_counter()
        late_s = self._ended_s - until_s
        self.late_s = min(late_s, MOST_LATE_S)
        self.paced_s += duration_s
        self.overrun_s += late_s - self.late_s
        self._waits_s.append(self.late_s)

    def note(self) -> dict[str, float]:
        """paced_s: what was to be waited in all. overrun_s: what was not made up for. late_*_s: what was, of each wait.
        took_s: from the beginning to the last wait's end."""
        late_s = sorted(self._waits_s) or [0.0]
        return {
            "paced_s": self.paced_s,
            "overrun_s": self.overrun_s,
            "late_sum_s": sum(late_s),
            "late_mean_s": statistics.fmean(late_s),
            "late_p95_s": late_s[min(len(late_s) - 1, round(0.95 * len(late_s)))],
            "took_s": self._ended_s - self._began_s,
        }


def told(everyones: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], str]:
    """What the notes of ranks that train say, for the provenance, and a warning where a run is not at its pace."""
    notes = [note for note in everyones if "paced_s" in note]
    if not notes:
        return {}, ""
    overrun = max(note["overrun_s"] / max(note["paced_s"], 1e-9) for note in notes)
    latest = max(notes, key=lambda note: _late(note))
    mean_ms, p95_ms = 1e3 * latest["late_mean_s"], 1e3 * latest["late_p95_s"]
    provenance = {
        "compute_overrun": f"{overrun:.1%} of the time to be waited",
        "compute_lateness": f"woke up {mean_ms:.2g} ms late on average, {p95_ms:.2g} ms at the 95th percentile",
    }
    reasons = []
    if overrun > _NOTICED_OVERRUN:
        reasons.append(f"computing took {overrun:.0%} longer than it should")
    if _late(latest) > _NOTICED_LATE:
        reasons.append(f"ranks woke up late by up to {_late(latest):.0%} of a step in all, for which others may have waited")
    advice = "pace fewer ranks, or slower layers, on a quiet machine"
    return provenance, f"{' and '.join(reasons)}: {advice}" if reasons else ""


def _late(note: Mapping[str, float]) -> float:
    """All lateness of a rank as a share of the time that its steps took."""
    return note["late_sum_s"] / max(note["took_s"], 1e-9)
