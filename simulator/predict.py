"""predict: a Scenario in, a predicted Run out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.accounting import accounted
from simulator.baseline import STEPS, compared
from simulator.engine import Variation, simulate_steady
from simulator.fitting import fit_by
from simulator.memory import memory
from simulator.run import Run, divided
from simulator.scenario import Scenario


def predict(scenario: Scenario) -> Run:
    """Step time, throughput, breakdown, communication, FLOPs, memory, energy and cost, and weak and strong scaling efficiency
    against the smallest baseline."""
    run = compared(_timed(scenario), scenario)
    return replace(accounted(run, scenario), **_memory(scenario))


def _timed(scenario: Scenario) -> Run:
    strategy, unevenness = scenario.strategy, scenario.unevenness
    program = strategy.compile(scenario.job(unevenness=unevenness))
    variation = Variation(
        start_s=program.ranks.late_s,
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        seed=unevenness.seed,
    )
    steps = 1 + max(2, scenario.steps) if unevenness.is_random or not program.is_static else STEPS
    timeline = simulate_steady(program, steps, variation)
    run = timeline.run(scenario=scenario.name, strategy=strategy.kind, samples=scenario.total_samples)
    return divided(run, strategy.program_steps)


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
