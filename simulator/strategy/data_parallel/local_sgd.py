"""Local SGD: workers take a period of optimizer steps independently, then average their parameters."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.cluster.device.device import Optimizer
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism.local_sgd import LocalSgd
from scaleproof.simulator.parallelism.mesh import place
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder

# Optimizers with the memory traffic of the two parts of an outer step.
_OUTER: Final[tuple[Optimizer, ...]] = ("sgd", "momentum")
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
# Limit of simulated passes of all classes of workers in a period.
_MAX_PASSES: Final = 1_000_000


def compile_local_sgd(strategy: LocalSgd, job: Job) -> Program:
    """A period: its steps on every worker, the all-reduce of parameters or of their changes, and the outer step.

    Raises FieldError if there are too many steps to simulate.
    """
    # the samples of a period are loaded as one batch
    builder = StepBuilder(job, samples=strategy.period * job.samples_per_worker)
    worker_classes = place(strategy.workers, job.cluster.node.devices, job.distinguishable_ranks(strategy.workers))
    _check_size(strategy, len(worker_classes))
    parameters = float(sum(layer.trained_parameters for layer in job.layers))

    def steps_s(costs: JobCosts) -> NDArray[np.float64]:
        layers = costs.layers()
        return np.tile([layers.forward_s.sum(), layers.backward_s.sum(), costs.job.optimizer_s(parameters)], strategy.period)

    ranks, begins, ends = [], [], []
    for worker_class in worker_classes:
        rank = builder.add_class(worker_class)
        begins.append(builder.wait(rank, Phase.SYNCHRONISE, []))
        builder.load(rank, worker_class.node, worker_class.each, worker_class.ranks)
        ends.append(int(builder.compute(np.array([rank]), np.tile(_PASSES, strategy.period), steps_s)[-1]))
        ranks.append(rank)
    averages = []
    if strategy.workers > 1:
        group = Group.of(strategy.workers, job.cluster.node.devices)
        nodes = sorted({worker_class.node for worker_class in worker_classes})
        size_bytes, ready = parameters * job.parameter_bytes, begins if strategy.overlap else ends
        averages = [builder.collective_of("all_reduce", group, size_bytes, ranks, nodes, ready, Dimension.DATA)]
    for rank in ranks:
        builder.wait(rank, Phase.SYNCHRONISE, averages)
        builder.compute(rank, Phase.OPTIMIZER, partial(_outer_s, strategy, parameters))
    return builder.priced()


def _outer_s(strategy: LocalSgd, parameters: float, costs: JobCosts) -> float:
    """Seconds of the outer step. The change of a period is two reads and one write, like a step of plain SGD."""
    if strategy.outer == "none":
        return 0.0
    device, precision = costs.job.cluster.device, costs.job.precision
    return sum(device.optimizer_s(parameters, optimizer, precision) for optimizer in _OUTER)


def _check_size(strategy: LocalSgd, classes: int) -> None:
    if classes * strategy.period * len(_PASSES) > _MAX_PASSES:
        limit = max(1, _MAX_PASSES // (classes * len(_PASSES)))
        message = f"{strategy.period} steps of {classes} different workers are too many to simulate; give at most {limit}"
        raise FieldError(("strategy", "period"), message)
