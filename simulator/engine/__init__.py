"""What times a Program. `events` is the reference; engines know programs, never strategies."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.engine import events, replay
from scaleproof.simulator.engine.contention import is_contended, longer_s
from scaleproof.simulator.engine.durations import Times
from scaleproof.simulator.engine.jitter import NONE, Variation
from scaleproof.simulator.engine.levels import order_of
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import Program

# Share of the time by which sharing may delay the end of the last step, to first order, before events decide.
NEGLIGIBLE: Final = 1e-3


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of `steps` steps of a program: by replay where that is exact, else by events.

    Replay takes everything to run as fast as it would alone. Where that never asks a resource for more than there is, sharing
    slows nothing and the answer stands. A program that is not static has no order to replay, and what tenants leave of
    resources changes while tasks use them.
    """
    if not program.is_static or program.resources.tenancies:
        return events.simulate(program, steps, variation, sample)
    timeline = replay.simulate(program, steps, variation, sample)
    return events.simulate(program, steps, variation, sample) if is_contended(timeline) else timeline


def simulate_steady(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """As `simulate`, of a program that goes on after these steps: in the last of them too it shares with what follows.

    Replay's answer also stands where sharing is negligible.
    """
    if not program.is_static:
        return events.simulate(program, steps, variation, sample)
    if program.resources.tenancies:
        return events.simulate(program, steps + 1, variation, sample).first(steps)
    timeline = replay.simulate(program, steps, variation, sample)
    if _is_negligible(timeline, variation, sample):
        return timeline
    return events.simulate(program, steps + 1, variation, sample).first(steps)


def _is_negligible(timeline: Timeline, variation: Variation, sample: int) -> bool:
    """Whether sharing ends the last step hardly later; by how much is only found out where it could matter."""
    longer, most_s = longer_s(timeline), NEGLIGIBLE * timeline.step_ends_s()[-1]
    if order_of(timeline.program).along_s(longer) <= most_s:
        return True
    return bool(later_s(timeline, longer, variation, sample) <= most_s)


def later_s(timeline: Timeline, longer: Times, variation: Variation = NONE, sample: int = 0) -> float:
    """How much later than in replay's timeline the last step ends where tasks take `longer` (`longer_s`), to first order: that
    counts once along every path, and only where it is not waited out."""
    if not longer.any():
        return 0.0
    longer_timeline = replay.simulate_longer(timeline.program, longer, variation, sample)
    return float(longer_timeline.step_ends_s()[-1] - timeline.step_ends_s()[-1])


__all__ = [
    "NEGLIGIBLE", "NONE", "Timeline", "Variation", "events", "is_contended", "later_s", "longer_s",
    "replay", "simulate", "simulate_steady",
]  # fmt: skip
