"""Local SGD: workers take a period of optimizer steps alone, then average what they have come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from scaleproof.simulator.cluster.collectives.algorithms import Group
from scaleproof.simulator.cluster.device.device import Device, Optimizer
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.base import Strategy
from scaleproof.simulator.strategy.data_parallel.loading_tasks import Feeding
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.placement import place
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Optimizers that move as many bytes as the two parts of an outer step.
_OUTER: Final[tuple[Optimizer, ...]] = ("sgd", "momentum")
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
# passes of all classes of workers in a period that are simulated
_MOST_PASSES: Final = 1_000_000


class LocalSgd(Strategy):
    """Every worker holds the whole model and trains alone on its share for `period` steps; then parameters are averaged.

    outer: none puts the average in the parameters' place (local SGD, arXiv 1805.09767); nesterov takes what a period changed,
    averaged over workers, for a gradient, and a step with momentum from where the period began (DiLoCo, arXiv 2311.08105).
    overlap: an average is waited for one period later, and moves while that goes on (arXiv 2502.12996).

    One step of the Program is a period, in which each worker trains on `period` batches: times of a step are means over it.
    """

    kind: Literal["local_sgd"] = "local_sgd"
    workers_: Count = Field(1, alias="workers")
    period: Annotated[int, Field(gt=0, le=100_000)] = Field(1, description="steps from one average to the next")
    outer: Literal["none", "nesterov"] = "none"
    overlap: bool = Field(False, description="average while the next period goes on")

    @property
    def workers(self) -> int:
        return self.workers_

    @property
    def program_steps(self) -> int:
        return self.period

    def compile(self, job: Job) -> Program:
        """A period: its steps on every worker, the allreduce of parameters or of their changes, and the outer step.

        Raises FieldError where there are too many steps to simulate.
        """
        builder = ProgramBuilder()
        fabric = ResourceMap(job.cluster, builder)
        placed = place(self.workers, job.cluster.node.devices, job.apart(self.workers))
        self._check_size(len(placed))
        costs = job.costs()
        parameters = float(costs.parameters.sum())
        step_s = [costs.forward_s.sum(), costs.backward_s.sum(), job.optimizer_s(parameters)]
        # the samples of a period are read as one batch, whose time is that of all
        feeding = Feeding(builder, replace(job, samples_per_worker=self.period * job.samples_per_worker))
        ranks, begins, ends = [], [], []
        for alike in placed:
            name = f"{alike.ranks} workers" if alike.ranks > 1 else f"worker {alike.rank}"
            rank = fabric.add_rank(name, job.unevenness, alike.rank, alike.node, alike.each, alike.ranks)
            begins.append(builder.wait(rank, Phase.SYNCHRONISE, []))
            feeding.add(rank, alike.node, alike.each, alike.ranks)
            ends.append(int(builder.computes(rank, np.tile(_PASSES, self.period), np.tile(step_s, self.period))[-1]))
            ranks.append(rank)
        averages = []
        if self.workers > 1:
            group, nodes = Group.of(self.workers, job.cluster.node.devices), sorted({alike.node for alike in placed})
            moved_bytes, path = fabric.collective("all_reduce", group, parameters * job.element_bytes, nodes)
            ready = begins if self.overlap else ends
            averages = [builder.collective(ranks, moved_bytes, path, Phase.SYNCHRONISE, ready)]
        for rank in ranks:
            builder.wait(rank, Phase.SYNCHRONISE, averages)
            builder.compute(rank, Phase.OPTIMIZER, self._outer_s(job, parameters))
        return builder.build()

    def _outer_s(self, job: Job, parameters: float) -> float:
        """Seconds of the outer step. What a period has changed is two reads and a write, like a step of plain SGD."""
        if self.outer == "none":
            return 0.0

        def both(device: Device) -> tuple[float]:
            return (sum(device.optimizer_s(parameters, optimizer, job.precision) for optimizer in _OUTER),)

        return job.cluster.device.of_each(("outer step", parameters), both)[0]

    def _check_size(self, classes: int) -> None:
        if classes * self.period * len(_PASSES) > _MOST_PASSES:
            most = max(1, _MOST_PASSES // (classes * len(_PASSES)))
            message = f"{self.period} steps of {classes} unlike workers are too many to simulate; give at most {most}"
            raise FieldError(("strategy", "period"), message)
