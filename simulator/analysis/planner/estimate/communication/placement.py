"""Placements of configurations' ranks on nodes."""

from __future__ import annotations

from typing import NamedTuple

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.analysis.planner.estimate.layer_times import plans_of
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.plan import Plan


class RankPlacement(NamedTuple):
    """A mesh of devices. senders: number of ranks on a node that have the same stage, and send at the same time."""

    grid: DeviceMesh
    senders: int

    @classmethod
    def of(cls, plan: Plan, job: Job) -> RankPlacement:
        """The placement of a plan's ranks."""
        grid = plan.grid(job.cluster.node.devices)
        return cls(grid, plan.classes(job)[0].each * grid.on_first_node(grid.members(0, 0)))


class RankPlacements(NamedTuple):
    """code: the placement of each configuration, an index into `all`."""

    code: Numbers
    all: list[RankPlacement]

    @classmethod
    def of(cls, configurations: Configurations, job: Job) -> RankPlacements:
        """The placements of all configurations. job: the job of any of them."""
        placed = configurations.distinct("tensor", "context", "workers", "stages", "order")
        return cls(placed.code, [RankPlacement.of(plan, job) for plan in plans_of(configurations, placed.first)])
