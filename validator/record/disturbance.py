"""Runs that other work on the machine disturbed: measured again, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scaleproof.simulator.run.run import DISTURBED, Run
from scaleproof.validator.record.provenance import load_of

# Most measurements of a run, and seconds of the first one from which it is not repeated.
MOST_ATTEMPTS: Final = 3
_LONG_S: Final = 60.0


def least_disturbed(measure: Callable[[int], Run], attempts: int = MOST_ATTEMPTS) -> Run:
    """The first run that is not disturbed, or the least disturbed one of all attempts.

    measure: measures once; its argument is the number of the attempt, from 1. All ranks of a job decide the same, since all
    have the same runs, which say how long they took.
    """
    runs: list[Run] = []
    for attempt in range(1, attempts + 1):
        runs.append(measure(attempt))
        if not runs[-1].disturbed:
            return runs[-1]
        if sum(runs[0].step_times_s) > _LONG_S:
            break
    least = min(runs, key=lambda run: load_of(run.provenance))
    if len(runs) == 1:
        return least
    text = f"{least.disturbed} (the least disturbed of {len(runs)} runs)"
    warnings = least.provenance.get("warnings", "").replace(least.disturbed, text)
    return replace(least, provenance={**least.provenance, DISTURBED: text, "warnings": warnings})
