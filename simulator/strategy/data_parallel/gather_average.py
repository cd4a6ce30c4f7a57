"""Gather and average: the textbook's data parallelism, in which one worker collects all gradients and hands out parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.base import Strategy
from scaleproof.simulator.strategy.data_parallel.loading_tasks import Feeding
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.placement import Placed, place
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Adding a gradient to a sum reads two and writes one.
_SUM_ACCESSES: Final = 3
# what runs at the same time by construction
_GATHER: Final = 0
_BROADCAST: Final = 1


class GatherAverage(Strategy):
    """All workers send their gradients to worker 0, which trains as well; it averages, updates, and sends parameters to all.

    Nothing of it overlaps: of n workers, (n − 1) times the gradients enter the main worker over its link, then (n − 1) times
    the parameters leave it, where a ring moves 2 · (n − 1) / n times the gradients through the link of each.
    """

    kind: Literal["gather_average"] = "gather_average"
    workers_: Count = Field(1, alias="workers")

    @property
    def workers(self) -> int:
        return self.workers_

    def compile(self, job: Job) -> Program:
        """Passes of all workers, the gather, the main worker's sum and update, the broadcast."""
        builder = ProgramBuilder()
        fabric = ResourceMap(job.cluster, builder)
        placed = place(self.workers, job.cluster.node.devices, self._apart(job))
        feeding, costs = Feeding(builder, job), job.costs()
        ranks, gradients = [], []
        for alike in placed:
            name = f"{alike.ranks} workers" if alike.ranks > 1 else f"worker {alike.rank}"
            rank = fabric.add_rank(name, job.unevenness, alike.rank, alike.node, alike.each, alike.ranks)
            feeding.add(rank, alike.node, alike.each, alike.ranks)
            builder.compute(rank, Phase.FORWARD, costs.forward_s.sum())
            gradients.append(builder.compute(rank, Phase.BACKWARD, costs.backward_s.sum()))
            ranks.append(rank)
        main, others = ranks[0], ranks[1:]
        parameters = float(costs.parameters.sum())
        size_bytes = parameters * job.element_bytes
        paths = [_paths(fabric, alike, size_bytes) for alike in placed[1:]]
        gathered = [
            builder.transfer(rank, main, size_bytes, into, Phase.SEND, (ready,), together=_GATHER)
            for rank, (into, _), ready in zip(others, paths, gradients[1:], strict=True)
        ]
        for rank, sent in zip(others, gathered, strict=True):
            builder.wait(rank, Phase.SEND, [sent])
        builder.wait(main, Phase.RECEIVE, gathered)
        sum_s = (self.workers - 1) * _SUM_ACCESSES * size_bytes / job.cluster.device.memory_bandwidth_Bps
        updated = builder.compute(main, Phase.OPTIMIZER, sum_s + job.optimizer_s(parameters))
        handed_out = [
            builder.transfer(main, rank, size_bytes, out, Phase.SEND, (updated,), together=_BROADCAST)
            for rank, (_, out) in zip(others, paths, strict=True)
        ]
        for rank, received in zip(others, handed_out, strict=True):
            builder.wait(rank, Phase.SYNCHRONISE, [received])
        builder.wait(main, Phase.SEND, handed_out)
        return builder.build()

    def _apart(self, job: Job) -> Collection[int]:
        """The main worker and those told apart; all, where messages of folded workers would not share what they do share."""
        if job.cluster.is_uniform and job.cluster.node.cards_used == 1:
            return {0, *job.apart(self.workers)}
        return range(self.workers)


def _paths(fabric: ResourceMap, alike: Placed, size_bytes: float) -> tuple[Path, Path]:
    """Of a message to the main worker, node 0's device 0, and of one back, for each of alike workers at the same time."""
    device = alike.rank % fabric.cluster.node.devices
    there, back = (device, 0), (0, device)
    if alike.node > 0:
        into = fabric.between(alike.node, 0, size_bytes, alike.each, alike.ranks, there)
        return into, fabric.between(0, alike.node, size_bytes, alike.ranks, alike.each, back)
    names, each = (f"node 0 device {device}", "node 0 device 0"), alike.each
    into = fabric.inside(0, *names, size_bytes, 1, each, each, there)
    return into, fabric.inside(0, *names[::-1], size_bytes, each, 1, each, back)
