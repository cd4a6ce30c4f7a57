"""Makes a predicted `Run` of a timeline."""

from __future__ import annotations

from typing import Any

from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.prediction.staleness import asynchronous_times, counted_samples, summary
from scaleproof.simulator.run.breakdown import StepBreakdown, from_spans
from scaleproof.simulator.run.run import Run


def predicted_run(
    *timelines: Timeline, samples: int, mean: bool = False, program_steps: int = 1, slowest: float = 1.0, **fields: Any
) -> Run:
    """A predicted Run of the steps of a timeline after the first, or of several timelines of one asynchronous program.

    samples: per training step, including those that backup workers drop. mean: see `from_spans`. program_steps: training steps
    in a step of the program. slowest: see `StepBreakdown.with_slowest`. fields: fields that a timeline does not have, such as
    the scenario.
    """
    program = timelines[0].program
    times = _static_times(timelines[0], mean) if program.is_static else asynchronous_times(timelines)
    return Run(
        **vars(times.divided(program_steps).with_slowest(slowest)),
        origin="predicted",
        rank_names=program.ranks.names,
        samples=counted_samples(program, samples),
        servers=summary(timelines),
        **fields,
    )


def _static_times(timeline: Timeline, mean: bool) -> StepBreakdown:
    """Times of a step of ranks that all take the same steps."""
    ranks = timeline.program.ranks
    times = from_spans(
        timeline.spans(), timeline.step_ends_s(), servers=ranks.is_server, multiplicity=ranks.multiplicity, mean=mean
    )
    return times.scaled_to_step()
