"""predict: a Scenario in, a predicted Run out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaleproof.simulator.common.errors import PluginError
from scaleproof.simulator.engine import Variation, simulate_steady
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.remedies import fit_by
from scaleproof.simulator.program import MAIN_LANE, Program
from scaleproof.simulator.run.accounting import accounted
from scaleproof.simulator.run.predicted import predicted_run
from scaleproof.simulator.run.run import BREAKDOWN, Run, divided
from scaleproof.simulator.run.scaling import compared
from scaleproof.simulator.run.steps import Simulate, simulated, warnings
from scaleproof.simulator.scenario.background_traffic import tenanted
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.prediction_interval import spread


def predict(scenario: Scenario, interval: bool = True, remedy: bool = True) -> Run:
    """Step time, throughput, breakdown, communication, FLOPs, memory, energy and cost, and weak and strong scaling efficiency
    against the smallest baseline. interval: tell how far the step time may be off too, which takes one to three times as long
    as the rest. remedy: tell what to set where memory does not suffice, which takes as long again.

    Raises FieldError for steps that are too many to simulate.
    """
    run = compared(timed(scenario, interval), scenario)
    return replace(accounted(run, scenario), **_memory(scenario, remedy))


def timed(scenario: Scenario, interval: bool = False, simulate: Simulate = simulate_steady) -> Run:
    """The part of `predict` that times the step: a Run that compares with nothing, and tells nothing of memory and cost."""
    strategy, unevenness = scenario.strategy, scenario.unevenness
    job = scenario.job(unevenness=unevenness)
    program = strategy.compile(job)
    if not isinstance(program, Program) or not (program.lane == MAIN_LANE).any():
        what = "a Program without tasks of ranks" if isinstance(program, Program) else type(program).__name__
        raise PluginError(f"the strategy {strategy.kind!r} compiles to {what}; make its compile return builder.build()")
    program = tenanted(program, scenario)
    variation = Variation(
        start_s=program.ranks.late_s,
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        tail=unevenness.tail,
        seed=unevenness.seed,
    )
    timeline = simulated(scenario, program, variation, simulate)
    run = predicted_run(
        timeline, unevenness.wants_mean, scenario=scenario.name, strategy=strategy.kind, samples=scenario.total_samples
    )
    run = _with_slowest(divided(run, strategy.program_steps), job.slowest)
    run = replace(run, framework=scenario.framework.name, framework_is_default=scenario.framework_is_default)
    if told := "\n".join(warnings(scenario, timeline)):
        run = replace(run, provenance={"warnings": told})
    if not interval:
        return run
    low, high, shares = spread(scenario, None if unevenness.is_random or unevenness.changes else program)
    return replace(run, prediction_interval_s=(low * run.step_time_s, high * run.step_time_s), spread=shares)


def _with_slowest(run: Run, slowest: float) -> Run:
    """The run with the part of its computation that is waiting for the slowest rank as a cause of its own. slowest: time of the
    slowest rank's computation over the mean."""
    compute_s = run.breakdown_s["compute"]
    parts = {"compute": compute_s / slowest, "slowest_rank": compute_s - compute_s / slowest}
    return replace(run, breakdown_s={name: {**run.breakdown_s, **parts}[name] for name in BREAKDOWN})


def _memory(scenario: Scenario, remedy: bool) -> dict[str, Any]:
    """A run's fields that tell of memory."""
    held = memory(scenario)
    return {
        "memory_bytes_per_rank": held.worst.total_bytes,
        "memory_bytes": held.worst.holders_bytes,
        "memory_by_stage": tuple(
            {"name": rank.name, "total_bytes": rank.total_bytes, "holders_bytes": rank.holders_bytes} for rank in held.ranks
        ),
        "capacity_bytes": held.capacity_bytes,
        "fits": held.fits,
        "fit_by": fit_by(scenario) if remedy and not held.fits else "",
    }
