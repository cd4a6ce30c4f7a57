"""Times of a run without events, from the events that its processes logged."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaleproof.proof.elastic.records import LoggedEvent


@dataclass(frozen=True)
class Pieces:
    """Times of an undisturbed run. start_s: until all processes have imported what training needs. meet_s: from there to their
    first step. save_s: of a checkpoint. restore_s: the part of meet_s in which ranks read a checkpoint."""

    start_s: float
    meet_s: float
    save_s: float
    restore_s: float = 0.0


def pieces(events: Sequence[LoggedEvent]) -> Pieces:
    """Times of a run without events."""
    started_s = max((event.at_s for event in events if event.what == "started"), default=events[0].at_s)
    imported_s = max(event.at_s for event in events if event.what == "imported")
    ready_s = max(event.at_s for event in events if event.what == "ready")
    saved = [event for event in events if event.what == "saved"]
    # new runs save the initial state, restored ones do not
    first_s = max(event.took_s for event in saved if event.step == 0)
    rest_s = [event.took_s for event in saved if event.step > 0]
    meet_s = max(0.0, ready_s - imported_s - first_s)
    restore_s = max((event.took_s for event in events if event.what == "restored"), default=0.0)
    return Pieces(imported_s - started_s, meet_s, statistics.median(rest_s), min(restore_s, meet_s))
