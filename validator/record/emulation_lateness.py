"""Lateness of emulated compute: how much later than predicted ranks woke up in a run's measured steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

# A rank makes up for at most this: it would otherwise shorten many waits after one long interruption.
MOST_LATE_S: Final = 0.005
# Shares of a run's time from which lateness is worth a warning.
_NOTICED_OVERRUN: Final = 0.05
_NOTICED_LATE: Final = 0.03


class Lateness:
    """Statistics of a rank's waits. late_s: current lateness, which the next wait makes up for."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Resets the statistics; the current lateness is still made up for."""
        self.paced_s = self.overrun_s = 0.0
        self._waits_s: list[float] = []
        self._began_s = self._ended_s = time.perf_counter()

    def add(self, duration_s: float, until_s: float) -> None:
        """Adds a wait of `duration_s` that is over now and should have ended at `until_s` (of time.perf_counter)."""
        self._ended_s = time.perf_counter()
        late_s = self._ended_s - until_s
        self.late_s = min(late_s, MOST_LATE_S)
        self.paced_s += duration_s
        self.overrun_s += late_s - self.late_s
        self._waits_s.append(self.late_s)

    def note(self) -> dict[str, float]:
        """The statistics in seconds. paced_s: sum of the emulated durations. overrun_s: lateness that was not made up for.
        late_*_s: lateness of waits that was made up for. took_s: from the beginning to the end of the last wait."""
        late_s = sorted(self._waits_s) or [0.0]
        return {
            "paced_s": self.paced_s,
            "overrun_s": self.overrun_s,
            "late_sum_s": sum(late_s),
            "late_mean_s": statistics.fmean(late_s),
            "late_p95_s": late_s[min(len(late_s) - 1, round(0.95 * len(late_s)))],
            "took_s": self._ended_s - self._began_s,
        }


def summary(everyones: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], str]:
    """Provenance entries from the notes of training ranks, and a warning where ranks were too late."""
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
    advice = "emulate fewer ranks, or slower layers, on a quiet machine"
    return provenance, f"{' and '.join(reasons)}: {advice}" if reasons else ""


def _late(note: Mapping[str, float]) -> float:
    """A rank's total lateness as a share of the time of its steps."""
    return note["late_sum_s"] / max(note["took_s"], 1e-9)
