"""predict: a Scenario in, a predicted Run out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simulator.engine import Variation, simulate
from simulator.fitting import fit_by
from simulator.memory import memory, states
from simulator.model.layers import cut_into_stages
from simulator.run import Run
from simulator.scenario import Scenario
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Job
from simulator.strategy.data_parallel import DataParallel
from simulator.strategy.pipeline import Pipeline, Pipelined
from simulator.unevenness import EVEN, Unevenness

# Step 0 fills what overlaps from step to step; the one after it is steady, and like all that follow where nothing is random.
_STEPS: Final = 2


def predict(scenario: Scenario) -> Run:
    """Step time, throughput, breakdown, memory, and weak and strong scaling efficiency against the smallest baseline.

    The baseline is even, whatever the scenario's unevenness.
    """
    run = _predict(scenario, scenario.strategy, scenario.samples_per_worker, scenario.unevenness)
    stages = _fewest_stages(scenario)
    efficiency, baseline = {}, {}
    for scaling, samples in (("weak", _weak_samples(scenario, stages)), ("strong", scenario.total_samples)):
        itself = run.ranks == stages and samples == run.samples and scenario.unevenness == EVEN
        per_s = run.samples_per_s if itself else samples / _baseline_step_s(scenario, stages, samples)
        efficiency[scaling] = run.samples_per_s_per_rank / (per_s / stages)
        held_by = "1 worker" if stages == 1 else f"1 worker of {stages} stages, the fewest that hold the model"
        baseline[scaling] = f"{held_by}, {samples} samples a step, {per_s:.4g} samples/s"
    return replace(run, efficiency=efficiency, baseline=baseline, **_memory(scenario))


def _memory(scenario: Scenario) -> dict[str, Any]:
    """A run's fields that tell of memory."""
    held = memory(scenario)
    return {
        "memory_bytes_per_rank": held.worst.total_bytes,
        "memory_bytes": held.worst.holders_bytes,
        "fits": held.fits,
        "fit_by": "" if held.fits else fit_by(scenario),
    }


def _baseline_step_s(scenario: Scenario, stages: int, samples: int) -> float:
    """Step time of one worker of `stages` stages that takes `samples` in microbatches of the scenario's size.

    A full pipeline takes the same time for every further microbatch, so a long step is told from two shorter ones.
    """
    strategy = scenario.strategy
    if not isinstance(strategy, Pipelined):
        return _predict(scenario, DataParallel(), samples).step_time_s
    microbatch = scenario.samples_per_worker // strategy.microbatches

    def step_s(microbatches: int) -> float:
        schedule = strategy.schedule if microbatches >= stages else "gpipe"
        pipeline = Pipeline.model_validate({"stages": stages, "microbatches": microbatches, "schedule": schedule})
        return _predict(scenario, pipeline, microbatches * microbatch).step_time_s

    microbatches, filled, more = samples // microbatch, 2 * stages, 3 * stages
    if microbatches <= more:
        return step_s(microbatches)
    filled_s = step_s(filled)
    return filled_s + (microbatches - filled) / (more - filled) * (step_s(more) - filled_s)


def _predict(scenario: Scenario, strategy: Strategy, samples_per_worker: int, unevenness: Unevenness = EVEN) -> Run:
    program = strategy.compile(job_of(scenario, samples_per_worker, unevenness))
    variation = Variation(
        start_s=program.ranks.late_s,
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        seed=unevenness.seed,
    )
    steps = 1 + max(2, scenario.steps) if unevenness.is_random else _STEPS
    return simulate(program, steps, variation).run(
        scenario=scenario.name, strategy=strategy.kind, samples=samples_per_worker * strategy.workers
    )


def job_of(scenario: Scenario, samples_per_worker: int, unevenness: Unevenness = EVEN) -> Job:
    """What a strategy compiles for a scenario, with so many samples for each worker."""
    return Job(
        layers=scenario.model.build_layers(),
        cluster=scenario.cluster,
        samples_per_worker=samples_per_worker,
        precision=scenario.training.precision,
        optimizer=scenario.training.optimizer,
        unevenness=unevenness,
        recompute=scenario.training.recompute,
        zero=scenario.training.zero,
        input=scenario.input,
        measured_step=scenario.training.measured_step,
    )


def _fewest_stages(scenario: Scenario) -> int:
    """Stages of the smallest configuration that holds weights, gradients and optimizer state of the model.

    A lower bound, since activations depend on how many microbatches there are: never more stages than the scenario itself has.
    """
    layers = scenario.model.build_layers()
    if not isinstance(scenario.strategy, Pipelined):
        return 1
    for stages in range(1, scenario.strategy.stages):
        cut = cut_into_stages(layers, stages)
        most_bytes = max(sum(states([layers[i] for i in stage], scenario.training)) for stage in cut)
        if most_bytes <= scenario.cluster.device.memory_bytes:
            return stages
    return scenario.strategy.stages


def _weak_samples(scenario: Scenario, stages: int) -> int:
    """Samples that leave each rank of the baseline as many as it has in the scenario, in whole microbatches."""
    strategy = scenario.strategy
    microbatches = max(1, round(strategy.microbatches * stages / strategy.stages))
    return microbatches * (scenario.samples_per_worker // strategy.microbatches)
