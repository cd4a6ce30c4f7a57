"""Local SGD: workers take a period of optimizer steps independently, then average their parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.cluster.device.device import Device, Optimizer
from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.base import Strategy
from scaleproof.simulator.strategy.data_parallel.data_loading import BatchLoader
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import place
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Optimizers with the memory traffic of the two parts of an outer step.
_OUTER: Final[tuple[Optimizer, ...]] = ("sgd", "momentum")
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
# Limit of simulated passes of all classes of workers in a period.
_MAX_PASSES: Final = 1_000_000


class LocalSgd(Strategy):
    """Every worker has the whole model and trains independently on its share for `period` steps; then parameters are averaged.

    outer: none replaces parameters by the average (local SGD, arXiv 1805.09767); nesterov treats the average change of a period
    as a gradient, and takes a step with momentum from the parameters at its start (DiLoCo, arXiv 2311.08105). overlap: an
    average is used one period later, and moves during that period (arXiv 2502.12996).

    One step of the Program is a period, in which each worker trains on `period` batches: times of a step are means over it.
    """

    kind: Literal["local_sgd"] = "local_sgd"
    workers_: Count = Field(1, alias="workers")
    period: Annotated[int, Field(gt=0, le=100_000)] = Field(1, description="steps from one average to the next")
    outer: Literal["none", "nesterov"] = "none"
    overlap: bool = Field(False, description="average while the next period goes on")

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.workers_

    @property
    def program_steps(self) -> int:
        """Optimizer steps between two averages."""
        return self.period

    def compile(self, job: Job) -> Program:
        """A period: its steps on every worker, the all-reduce of parameters or of their changes, and the outer step.

        Raises FieldError if there are too many steps to simulate.
        """
        builder = ProgramBuilder()
        resource_map = ResourceMap(job.cluster, builder)
        worker_classes = place(self.workers, job.cluster.node.devices, job.distinguishable_ranks(self.workers))
        self._check_size(len(worker_classes))
        costs = job.costs()
        parameters = float(costs.parameters.sum())
        step_s = [costs.forward_s.sum(), costs.backward_s.sum(), job.optimizer_s(parameters)]
        # the samples of a period are loaded as one batch
        batches = BatchLoader(builder, replace(job, samples_per_worker=self.period * job.samples_per_worker))
        ranks, begins, ends = [], [], []
        for worker_class in worker_classes:
            name = f"{worker_class.ranks} workers" if worker_class.ranks > 1 else f"worker {worker_class.rank}"
            rank = resource_map.add_rank(
                name, job.unevenness, worker_class.rank, worker_class.node, worker_class.each, worker_class.ranks,
                is_emulated=job.is_emulated,
            )  # fmt: skip
            begins.append(builder.wait(rank, Phase.SYNCHRONISE, []))
            batches.add(rank, worker_class.node, worker_class.each, worker_class.ranks)
            ends.append(int(builder.computes(rank, np.tile(_PASSES, self.period), np.tile(step_s, self.period))[-1]))
            ranks.append(rank)
        averages = []
        if self.workers > 1:
            group, nodes = (
                Group.of(self.workers, job.cluster.node.devices),
                sorted({worker_class.node for worker_class in worker_classes}),
            )
            moved_bytes, path = resource_map.collective("all_reduce", group, parameters * job.parameter_bytes, nodes)
            ready = begins if self.overlap else ends
            labels = Communication.of(Dimension.DATA, "all_reduce", parameters * job.parameter_bytes)
            averages = [builder.collective(ranks, moved_bytes, path, Phase.SYNCHRONISE, ready, labels=labels)]
        for rank in ranks:
            builder.wait(rank, Phase.SYNCHRONISE, averages)
            builder.compute(rank, Phase.OPTIMIZER, self._outer_s(job, parameters))
        return builder.build()

    def _outer_s(self, job: Job, parameters: float) -> float:
        """Seconds of the outer step. The change of a period is two reads and one write, like a step of plain SGD."""
        if self.outer == "none":
            return 0.0

        def kernels_s(device: Device) -> tuple[float]:
            return (sum(device.optimizer_s(parameters, optimizer, job.precision) for optimizer in _OUTER),)

        return job.cluster.device.per_device(("outer step", parameters), kernels_s)[0]

    def _check_size(self, classes: int) -> None:
        if classes * self.period * len(_PASSES) > _MAX_PASSES:
            limit = max(1, _MAX_PASSES // (classes * len(_PASSES)))
            message = f"{self.period} steps of {classes} different workers are too many to simulate; give at most {limit}"
            raise FieldError(("strategy", "period"), message)
