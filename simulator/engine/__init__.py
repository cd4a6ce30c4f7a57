"""What times a Program. `events` is the reference; engines know programs, never strategies."""

from __future__ import annotations

from simulator.engine import events, replay
from simulator.engine.timeline import Timeline
from simulator.program import Program


def simulate(program: Program, steps: int) -> Timeline:
    """Times `steps` steps of a program: by replay where that is exact, else by events.

    Replay takes everything to run as fast as it would alone. Where that never asks a resource for more than there is, sharing
    slows nothing and the answer stands.
    """
    if not program.has_servers:
        timeline = replay.simulate(program, steps)
        if not replay.is_contended(timeline):
            return timeline
    return events.simulate(program, steps)
