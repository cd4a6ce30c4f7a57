"""Wires: seconds that messages and collectives of configurations take alone, as their programs would have them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from simulator.cluster import Cluster
from simulator.cluster.algorithms import Group, Op
from simulator.engine.alone import durations_s
from simulator.program import Path, ProgramBuilder
from simulator.run import Phase
from simulator.strategy.costs import Job
from simulator.strategy.fabric import Fabric
from simulator.strategy.plan import Plan


class Wires:
    """Asked for one after the other, answered all at once: `ask` gives a number, `seconds` what each number takes."""

    def __init__(self, cluster: Cluster) -> None:
        self._builder = ProgramBuilder()
        self.fabric = Fabric(cluster, self._builder)
        self._rank = self._builder.rank("anyone")
        self._known: dict[Hashable, int] = {}
        self._alike: dict[Hashable, int] = {}

    def alike(self, plan: Plan, job: Job) -> int:
        """How many ranks on a node have a stage of the model, and send when any of them does."""
        key = plan.tensor, plan.context, plan.workers, plan.stages, plan.order
        if key not in self._alike:
            grid = plan.grid(job.cluster.node.devices)
            self._alike[key] = plan.classes(job)[0].each * grid.beside(grid.members(0, 0))
        return self._alike[key]

    def message(self, key: Hashable, size_bytes: float, path: Path) -> int:
        """key: equal for messages that take as long."""
        if (key, size_bytes) not in self._known:
            row = self._builder.transfer(self._rank, self._rank, size_bytes, path, Phase.SEND, ())
            self._known[key, size_bytes] = row
        return self._known[key, size_bytes]

    def collective(self, op: Op, group: Group, size_bytes: float, beside: int, algorithm: str | None = None) -> int:
        """beside: groups like it on the same nodes."""
        key = op, group, size_bytes, beside, algorithm
        if key not in self._known:
            nodes = group.node_numbers.tolist()[:1]
            moved_bytes, path = self.fabric.collective(op, group, size_bytes, nodes, beside, algorithm)
            self._known[key] = self._builder.collective([self._rank], moved_bytes, path, Phase.SYNCHRONISE, ())
        return self._known[key]

    def seconds(self) -> NDArray[np.float64]:
        """By number."""
        return durations_s(self._builder.build()) if self._known else np.zeros(0)
