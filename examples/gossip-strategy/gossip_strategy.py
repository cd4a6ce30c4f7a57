"""Gossip: workers in a ring average their parameters with their two neighbours, and with nobody else."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from scaleproof.plugin import BatchLoader, Count, Job, Phase, Program, ProgramBuilder, ResourceMap, Strategy

# Averaging writes one copy of the parameters, and reads a worker's own next to those of its neighbours.
_OWN_ACCESSES: Final = 2


class Gossip(Strategy):
    """Decentralised parallel SGD (arXiv 1705.09056, algorithm 1) on a ring.

    In every step a worker sends its parameters to its neighbours, and makes its gradient meanwhile; then it puts the mean of
    its own and its neighbours' parameters in the place of its own, and takes a step with its gradient from there. Nobody
    waits for all: what one worker knows comes to another after as many steps as there are workers between them.
    """

    kind: Literal["gossip"] = "gossip"
    workers_: Count = Field(1, alias="workers", description="replicas of the model, in a ring")

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.workers_

    def neighbours(self, worker: int) -> list[int]:
        """The workers on both sides of one: one worker in a group of two, and empty for a single worker."""
        return sorted({(worker - 1) % self.workers, (worker + 1) % self.workers} - {worker})


def compile_gossip(strategy: Gossip, job: Job) -> Program:
    """Messages to the neighbours next to both passes; the average and the optimizer's step once all have come."""
    builder = ProgramBuilder()
    fabric, feeding, costs = ResourceMap(job.cluster, builder), BatchLoader(builder, job), job.costs()
    places = [divmod(worker, job.cluster.node.devices) for worker in range(strategy.workers)]
    ranks = [fabric.add_rank(f"worker {worker}", job.unevenness, worker, node) for worker, (node, _) in enumerate(places)]
    # a step begins once the one before has ended: its parameters are then what neighbours get
    begins = [builder.wait(rank, Phase.SYNCHRONISE, []) for rank in ranks]
    parameters = float(costs.parameters.sum())
    size_bytes = parameters * job.element_bytes
    messages: list[list[int]] = [[] for _ in ranks]
    for worker in range(strategy.workers):
        for neighbour in strategy.neighbours(worker):
            path = fabric.message(places[worker], places[neighbour], size_bytes)
            ends = begins[worker], begins[neighbour]
            row = builder.transfer(ranks[worker], ranks[neighbour], size_bytes, path, Phase.SEND, ends)
            # neither may change its parameters before they have been sent
            messages[worker].append(row)
            messages[neighbour].append(row)
    for worker, rank in enumerate(ranks):
        feeding.add(rank, places[worker][0], each=1, total=1)
        builder.compute(rank, Phase.FORWARD, float(costs.forward_s.sum()))
        builder.compute(rank, Phase.BACKWARD, float(costs.backward_s.sum()))
        builder.wait(rank, Phase.SYNCHRONISE, messages[worker])
        accesses = _OWN_ACCESSES + len(strategy.neighbours(worker)) if strategy.workers > 1 else 0
        mean_s = accesses * size_bytes / job.cluster.device.memory_bandwidth_Bps
        builder.compute(rank, Phase.OPTIMIZER, mean_s + job.optimizer_s(parameters))
    return builder.build()
