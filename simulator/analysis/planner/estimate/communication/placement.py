"""Places: how the ranks of configurations are placed on nodes."""

from __future__ import annotations

from typing import NamedTuple

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.analysis.planner.estimate.layer_times import plans_of
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.plan import Plan


class Place(NamedTuple):
    """alike: how many ranks on a node have a stage of the model, and send when any of them does."""

    grid: DeviceMesh
    alike: int

    @classmethod
    def of(cls, plan: Plan, job: Job) -> Place:
        """Of a plan's ranks."""
        grid = plan.grid(job.cluster.node.devices)
        return cls(grid, plan.classes(job)[0].each * grid.beside(grid.members(0, 0)))


class Places(NamedTuple):
    """code: the place of each configuration, one of `all`."""

    code: Numbers
    all: list[Place]

    @classmethod
    def of(cls, configurations: Configurations, job: Job) -> Places:
        """Of all configurations. job: any of theirs."""
        placed = configurations.distinct("tensor", "context", "workers", "stages", "order")
        return cls(placed.code, [Place.of(plan, job) for plan in plans_of(configurations, placed.first)])
