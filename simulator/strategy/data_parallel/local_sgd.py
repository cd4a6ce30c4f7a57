"""Local SGD: workers take a period of optimizer steps independently, then average their parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.collectives.algorithms import Group
from scaleproof.simulator.cluster.device.device import Device, Optimizer
from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism.local_sgd import LocalSgd
from scaleproof.simulator.parallelism.mesh import place
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.strategy.data_parallel.data_loading import BatchLoader
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Optimizers with the memory traffic of the two parts of an outer step.
_OUTER: Final[tuple[Optimizer, ...]] = ("sgd", "momentum")
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
# Limit of simulated passes of all classes of workers in a period.
_MAX_PASSES: Final = 1_000_000


def compile_local_sgd(strategy: LocalSgd, job: Job) -> Program:
    """A period: its steps on every worker, the all-reduce of parameters or of their changes, and the outer step.

    Raises FieldError if there are too many steps to simulate.
    """
    builder = ProgramBuilder()
    resource_map = ResourceMap(job.cluster, builder)
    worker_classes = place(strategy.workers, job.cluster.node.devices, job.distinguishable_ranks(strategy.workers))
    _check_size(strategy, len(worker_classes))
    costs = job.costs()
    parameters = float(costs.parameters.sum())
    step_s = [costs.forward_s.sum(), costs.backward_s.sum(), job.optimizer_s(parameters)]
    # the samples of a period are loaded as one batch
    batches = BatchLoader(builder, replace(job, samples_per_worker=strategy.period * job.samples_per_worker))
    ranks, begins, ends = [], [], []
    for worker_class in worker_classes:
        name = f"{worker_class.ranks} workers" if worker_class.ranks > 1 else f"worker {worker_class.rank}"
        rank = resource_map.add_rank(
            name, job.unevenness, worker_class.rank, worker_class.node, worker_class.each, worker_class.ranks,
            is_emulated=job.is_emulated,
        )  # fmt: skip
        begins.append(builder.wait(rank, Phase.SYNCHRONISE, []))
        batches.add(rank, worker_class.node, worker_class.each, worker_class.ranks)
        ends.append(int(builder.computes(rank, np.tile(_PASSES, strategy.period), np.tile(step_s, strategy.period))[-1]))
        ranks.append(rank)
    averages = []
    if strategy.workers > 1:
        group, nodes = (
            Group.of(strategy.workers, job.cluster.node.devices),
            sorted({worker_class.node for worker_class in worker_classes}),
        )
        moved_bytes, path = resource_map.collective("all_reduce", group, parameters * job.parameter_bytes, nodes)
        ready = begins if strategy.overlap else ends
        labels = Communication.of(Dimension.DATA, "all_reduce", parameters * job.parameter_bytes)
        averages = [builder.collective(ranks, moved_bytes, path, Phase.SYNCHRONISE, ready, labels=labels)]
    for rank in ranks:
        builder.wait(rank, Phase.SYNCHRONISE, averages)
        builder.compute(rank, Phase.OPTIMIZER, _outer_s(strategy, job, parameters))
    return builder.build()


def _outer_s(strategy: LocalSgd, job: Job, parameters: float) -> float:
    """Seconds of the outer step. The change of a period is two reads and one write, like a step of plain SGD."""
    if strategy.outer == "none":
        return 0.0

    def kernels_s(device: Device) -> tuple[float]:
        return (sum(device.optimizer_s(parameters, optimizer, job.precision) for optimizer in _OUTER),)

    return job.cluster.device.per_device(("outer step", parameters), kernels_s)[0]


def _check_size(strategy: LocalSgd, classes: int) -> None:
    """Raises FieldError where a period has too many passes of different workers."""
    if classes * strategy.period * len(_PASSES) > _MAX_PASSES:
        limit = max(1, _MAX_PASSES // (classes * len(_PASSES)))
        message = f"{strategy.period} steps of {classes} different workers are too many to simulate; give at most {limit}"
        raise FieldError(("strategy", "period"), message)
