"""Makes a predicted `Run` of a timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.run.run import Run, from_spans
from scaleproof.simulator.run.staleness import run_of, summary


def predicted_run(timeline: Timeline, mean: bool = False, **fields: Any) -> Run:
    """A predicted Run of the steps of a timeline after the first.

    mean: see `from_spans`. fields: fields of the Run that a program does not have, such as its scenario.
    """
    program = timeline.program
    if not program.is_static:
        return replace(run_of(timeline, **fields), servers=summary(timeline))
    ranks = program.ranks
    run = from_spans(
        timeline.spans(),
        timeline.step_ends_s(),
        servers=ranks.is_server,
        multiplicity=ranks.multiplicity,
        origin="predicted",
        rank_names=ranks.names,
        mean=mean,
        **fields,
    )
    return replace(_scaled_to_step(run), servers=summary(timeline))


def _scaled_to_step(run: Run) -> Run:
    """The run with its parts scaled so that they add up to the step time, since the steps of one rank differ slightly from
    those of all ranks."""
    known_s = run.step_time_s - run.breakdown_s["other"]

    def scaled(parts_s: Mapping[str, float]) -> dict[str, float]:
        return (
            {name: seconds * run.step_time_s / known_s for name, seconds in parts_s.items()} if known_s > 0 else dict(parts_s)
        )

    return replace(
        run,
        phase_s=scaled(run.phase_s),
        breakdown_s=scaled(run.breakdown_s) | {"other": 0.0 if known_s > 0 else run.step_time_s},
        communication_s=scaled(run.communication_s),
    )
