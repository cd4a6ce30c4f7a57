"""Prediction of a training run, from top to bottom: scenario -> costs -> program -> timeline -> run -> interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaleproof.simulator.common.errors import PluginError
from scaleproof.simulator.engine import Timeline, Variation, simulate_steady
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.remedies import fit_by
from scaleproof.simulator.program import MAIN_STREAM, Program
from scaleproof.simulator.run.accounting import accounted
from scaleproof.simulator.run.predicted import predicted_run
from scaleproof.simulator.run.run import BREAKDOWN, Run, divided
from scaleproof.simulator.run.scaling import compared
from scaleproof.simulator.run.steps import Simulate, simulate_steps, warnings
from scaleproof.simulator.scenario.background_traffic import with_background_traffic
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.uncertainty.prediction_interval import spread


def predict(scenario: Scenario, interval: bool = True, remedy: bool = True) -> Run:
    """Predicts step time, throughput, breakdown, communication, FLOPs, memory, energy and cost of a scenario, and its weak and
    strong scaling efficiency against the smallest baseline.

    interval: also compute the 90 % prediction interval of the step time, which takes one to three times as long as the rest.
    remedy: also search for settings with which the memory suffices, where it does not; this takes as long again.
    Raises FieldError for more steps than can be simulated.
    """
    run = timed(scenario, interval)
    run = compared(run, scenario)
    run = accounted(run, scenario)
    return replace(run, **_memory(scenario, remedy))


def timed(scenario: Scenario, interval: bool = False, simulate: Simulate = simulate_steady) -> Run:
    """Predicts the step time of a scenario and its breakdown, without scaling efficiency, FLOPs, energy, cost and memory.

    simulate: times the program. Raises FieldError for more steps than can be simulated.
    """
    costs = scenario.job()
    program = _compile(scenario, costs)
    timeline = _simulate(scenario, program, simulate)
    run = _run(scenario, costs, timeline)
    return _with_interval(run, scenario, program) if interval else run


def _compile(scenario: Scenario, costs: Job) -> Program:
    """The program of a scenario's strategy, with the background traffic of its cluster."""
    program = scenario.strategy.compile(costs)
    if not isinstance(program, Program) or not (program.stream == MAIN_STREAM).any():
        what = "a Program without tasks of ranks" if isinstance(program, Program) else type(program).__name__
        raise PluginError(
            f"the strategy {scenario.strategy.kind!r} compiles to {what}; make its compile return builder.build()"
        )
    return with_background_traffic(program, scenario)


def _simulate(scenario: Scenario, program: Program, simulate: Simulate) -> Timeline:
    """The timeline of as many steps as the step time follows from, with the scenario's jitter."""
    unevenness = scenario.unevenness
    variation = Variation(
        start_s=program.ranks.late_s,
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        tail=unevenness.tail,
        seed=unevenness.seed,
    )
    return simulate_steps(scenario, program, variation, simulate)


def _run(scenario: Scenario, costs: Job, timeline: Timeline) -> Run:
    """The run of a timeline: times of one training step, with the names of the scenario and warnings."""
    strategy = scenario.strategy
    run = predicted_run(
        timeline, scenario.unevenness.wants_mean, scenario=scenario.name, strategy=strategy.kind, samples=scenario.total_samples
    )
    run = _with_slowest(divided(run, strategy.program_steps), costs.slowest)
    run = replace(run, framework=scenario.framework.name, framework_is_default=scenario.framework_is_default)
    text = "\n".join(warnings(scenario, timeline))
    return replace(run, provenance={"warnings": text}) if text else run


def _with_slowest(run: Run, slowest: float) -> Run:
    """The run with "compute" split into its mean over the ranks and the waiting for the slowest rank.

    slowest: compute time of the slowest rank, as a multiple of the mean.
    """
    compute_s = run.breakdown_s["compute"]
    parts = {"compute": compute_s / slowest, "slowest_rank": compute_s - compute_s / slowest}
    return replace(run, breakdown_s={name: {**run.breakdown_s, **parts}[name] for name in BREAKDOWN})


def _with_interval(run: Run, scenario: Scenario, program: Program) -> Run:
    """The run with its 90 % prediction interval in seconds, and the shares of the quantities that it comes from."""
    is_exact = not (scenario.unevenness.is_random or scenario.unevenness.changes)
    low, high, shares = spread(scenario, program if is_exact else None)
    return replace(run, prediction_interval_s=(low * run.step_time_s, high * run.step_time_s), spread=shares)


def _memory(scenario: Scenario, remedy: bool) -> dict[str, Any]:
    """The fields of a run about memory."""
    use = memory(scenario)
    return {
        "memory_bytes_per_rank": use.worst.total_bytes,
        "memory_bytes": use.worst.holders_bytes,
        "memory_by_stage": tuple(
            {"name": rank.name, "total_bytes": rank.total_bytes, "holders_bytes": rank.holders_bytes} for rank in use.ranks
        ),
        "capacity_bytes": use.capacity_bytes,
        "fits": use.fits,
        "fit_by": fit_by(scenario) if remedy and not use.fits else "",
    }
