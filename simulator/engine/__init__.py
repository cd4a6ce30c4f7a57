"""Engines, which time a Program: `events` is the reference, `replay` is faster. They know programs, not strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from scaleproof.simulator.engine import events, replay
from scaleproof.simulator.engine.contention import busiest_s, is_contended, longer_s
from scaleproof.simulator.engine.durations import Times
from scaleproof.simulator.engine.levels import order_of
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.engine.variation import NONE, Variation
from scaleproof.simulator.program import Program

# Relative delay of the last step by shared resources, to first order, up to which replay's result is used.
NEGLIGIBLE: Final = 1e-3


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of `steps` steps of a program: by replay if that is exact, else by events.

    Replay assumes that each task is as fast as it would be alone. Its result is exact if the tasks never demand more of a
    resource than its capacity. Programs that are not static have no fixed order to replay, and background traffic changes the
    capacity while tasks use it.
    """
    if not program.is_static or program.resources.tenancies:
        return events.simulate(program, steps, variation, sample)
    timeline = replay.simulate(program, steps, variation, sample)
    return events.simulate(program, steps, variation, sample) if is_contended(timeline) else timeline


def simulate_steady(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of `steps` steps of a program that continues afterwards, so that the last step shares with the next one.

    Replay's result is also used if the delay by sharing is negligible.
    """
    if not program.is_static:
        return events.simulate(program, steps, variation, sample)
    if program.resources.tenancies:
        return events.simulate(program, steps, variation, sample, continues=True)
    return _with_sharing(replay.simulate(program, steps, variation, sample), variation, sample)


def simulate_steady_together(programs: Sequence[Program], steps: int, start_s: Times) -> Iterator[Timeline]:
    """Times programs as `simulate_steady` does, but by one replay. Arguments and errors: see `replay.simulate_together`."""
    for timeline in replay.simulate_together(programs, steps, start_s):
        yield _with_sharing(timeline, Variation(start_s=start_s))


def _with_sharing(timeline: Timeline, variation: Variation, sample: int = 0) -> Timeline:
    """Replay's timeline of a program that continues afterwards; that of events if sharing is not negligible."""
    if shares_negligibly(timeline, variation, sample):
        return timeline
    return events.simulate(timeline.program, len(timeline.start_s), variation, sample, continues=True)


def shares_negligibly(timeline: Timeline, variation: Variation = NONE, sample: int = 0) -> bool:
    """Whether sharing delays the last step negligibly; the delay is computed only if its upper bound is not negligible.

    Not if all steps are shorter than a resource is busy for one: delays of first order may vanish in waits that sharing fills.
    """
    ends_s = timeline.step_ends_s()
    if busiest_s(timeline.program) > (1 + NEGLIGIBLE) * np.diff(ends_s, prepend=0.0).max():
        return False
    longer, most_s = longer_s(timeline), NEGLIGIBLE * ends_s[-1]
    if not longer.any() or order_of(timeline.program).along_s(longer) <= most_s:
        return True
    return bool(later_s(timeline, longer, variation, sample) <= most_s)


def later_s(timeline: Timeline, longer: Times, variation: Variation = NONE, sample: int = 0) -> float:
    """Seconds by which the last step ends later than in replay's timeline if tasks take `longer`, to first order.

    longer: see `longer_s`; a delay counts once along each path, and not where the path waits anyway.
    """
    longer_timeline = replay.simulate_longer(timeline.program, longer, variation, sample)
    return float(longer_timeline.step_ends_s()[-1] - timeline.step_ends_s()[-1])


__all__ = [
    "NEGLIGIBLE", "NONE", "Timeline", "Variation", "busiest_s", "events", "is_contended", "later_s", "longer_s",
    "replay", "shares_negligibly", "simulate", "simulate_steady", "simulate_steady_together",
]  # fmt: skip
