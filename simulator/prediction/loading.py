"""Rates of data loading: what each of its parts allows a node, what training needs, and what would cure the difference."""

from __future__ import annotations

from typing import NamedTuple

from scaleproof.simulator.model.layers import inputs_of
from scaleproof.simulator.parallelism import ModelParallel
from scaleproof.simulator.run.records import LoadingPart, LoadingRates
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.data_loading import loading_s, stages
from scaleproof.simulator.strategy.scenario_job import job_of, program_of


class BatchReader(NamedTuple):
    """The ranks of a worker's first stage, or a rank to which inputs of a divided model go. node: of the first of the ranks.
    samples: of a batch."""

    ranks: tuple[int, ...]
    node: int
    samples: int


def readers(scenario: Scenario) -> list[BatchReader]:
    """All readers of batches."""
    strategy, plan, devices = scenario.strategy, scenario.strategy.plan, scenario.cluster.node.devices
    if isinstance(strategy, ModelParallel):
        layers = job_of(scenario).layers
        first = {rank for rank, read in zip(strategy.device_of(layers), inputs_of(layers), strict=True) if not read}
        return [BatchReader((rank,), rank // devices, scenario.samples_per_worker) for rank in sorted(first)]
    grid = plan.grid_on(scenario.cluster)
    found = []
    for worker in range(plan.workers):
        # a step of the program may have several training steps, whose samples are loaded as one batch
        samples = strategy.program_steps * plan.samples_of(worker, scenario.samples_per_worker)
        found.append(BatchReader(tuple(grid.members(worker, 0)), grid.place(worker, 0)[0], samples))
    return found


def loading_rates(scenario: Scenario, needed_per_s: float) -> LoadingRates | None:
    """Samples per second of a node that data loading allows; None where nothing is loaded. needed_per_s: samples per second of
    training that does not wait for them."""
    if scenario.input is None or not (seconds := loading_s(program_of(scenario))):
        return None
    samples, nodes = scenario.total_samples * scenario.strategy.program_steps, len({one.node for one in readers(scenario)})
    job, parts = job_of(scenario), []
    of_name = {one.name: one for one in stages(scenario.input, job.cluster, job.reading_nodes)}
    for name, duration_s in seconds.items():
        factor = needed_per_s * duration_s / samples
        parts.append(LoadingPart(name, samples / duration_s / nodes, of_name[name].cure(factor) if factor > 1 else ""))
    parts.sort(key=lambda one: one.per_s)
    return LoadingRates(needed_per_s / nodes, tuple(parts), bool(scenario.input.prefetch))
