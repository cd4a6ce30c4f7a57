"""predict: a Scenario in, a predicted Run out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simulator.accounting import accounted
from simulator.baseline import STEPS, compared
from simulator.engine import Timeline, Variation, simulate_steady
from simulator.errors import FieldError, PluginError
from simulator.fitting import fit_by
from simulator.memory import memory
from simulator.program import MAIN_LANE, Program
from simulator.run import Run, divided
from simulator.scenario import Scenario
from simulator.spread import spread

Simulate = Callable[[Program, int, Variation], Timeline]

# Tasks of all steps that are simulated. Static: by replay 2 us and 0.7 kB each, 14 us by events where many share; 4 million are
# up to a minute and 3 GB. Others: 10 to 30 us each. On a 2-core virtual machine.
_MOST_TASKS: Final = {True: 4_000_000, False: 2_000_000}
# The more tasks a step has, the less it varies: so many tell its mean, unless more are asked for.
_ENOUGH_TASKS: Final = 2_000_000


def predict(scenario: Scenario, interval: bool = True) -> Run:
    """Step time, throughput, breakdown, communication, FLOPs, memory, energy and cost, and weak and strong scaling efficiency
    against the smallest baseline. interval: tell how far the step time may be off too, which takes one to three times as long
    as the rest.

    Raises FieldError for steps that are too many to simulate.
    """
    run = compared(timed(scenario, interval), scenario)
    return replace(accounted(run, scenario), **_memory(scenario))


def timed(scenario: Scenario, interval: bool = False, simulate: Simulate = simulate_steady) -> Run:
    """The part of `predict` that times the step: a Run that compares with nothing, and tells nothing of memory and cost."""
    strategy, unevenness = scenario.strategy, scenario.unevenness
    program = strategy.compile(scenario.job(unevenness=unevenness))
    if not isinstance(program, Program) or not (program.lane == MAIN_LANE).any():
        what = "a Program without tasks of ranks" if isinstance(program, Program) else type(program).__name__
        raise PluginError(f"the strategy {strategy.kind!r} compiles to {what}; make its compile return builder.build()")
    variation = Variation(
        start_s=program.ranks.late_s,
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        seed=unevenness.seed,
    )
    timeline = simulate(program, _steps(scenario, program), variation)
    run = timeline.run(scenario=scenario.name, strategy=strategy.kind, samples=scenario.total_samples)
    run = divided(run, strategy.program_steps)
    if not interval:
        return run
    low, high, shares = spread(scenario, None if unevenness.is_random else program)
    return replace(run, prediction_interval_s=(low * run.step_time_s, high * run.step_time_s), spread=shares)


def _steps(scenario: Scenario, program: Program) -> int:
    """How many steps to simulate. Raises FieldError for more than can be."""
    if program.is_static and not scenario.unevenness.is_random:
        return STEPS
    steps, most = scenario.steps, max(2, _MOST_TASKS[program.is_static] // len(program))
    if "steps" not in scenario.model_fields_set:
        steps = min(steps, _ENOUGH_TASKS // len(program))
    elif steps > most:
        raise FieldError(("steps",), f"{steps:,} of {len(program):,} tasks each are too many to simulate; give at most {most}")
    return 1 + max(2, steps)


def _memory(scenario: Scenario) -> dict[str, Any]:
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
        "fit_by": "" if held.fits else fit_by(scenario),
    }
