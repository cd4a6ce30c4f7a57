"""Gossip: workers in a ring average their parameters with their two neighbours, and with nobody else."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pydantic import Field

from scaleproof.plugin import Count, Job, JobCosts, Phase, Program, StepBuilder, Strategy, backward_s, forward_s

# Averaging writes one copy of the parameters, and reads a worker's own next to those of its neighbours.
_OWN_ACCESSES: Final = 2


class Gossip(Strategy):
    """Decentralised parallel SGD (arXiv 1705.09056, algorithm 1) on a ring.

    In every step a worker sends its parameters to its neighbours, and makes its gradient meanwhile; then it puts the mean of
    its own and its neighbours' parameters in the place of its own, and takes a step with its gradient from there. Nobody
    waits for all: what one worker knows comes to another after as many steps as there are workers between them.
    """

    kind: Literal["gossip"] = "gossip"
    workers: Count = Field(1, description="replicas of the model, in a ring")

    def neighbours(self, worker: int) -> list[int]:
        """The workers on both sides of one: one worker in a group of two, and empty for a single worker."""
        return sorted({(worker - 1) % self.workers, (worker + 1) % self.workers} - {worker})


def compile_gossip(strategy: Gossip, job: Job) -> Program:
    """Messages to the neighbours next to both passes; the average and the optimizer's step once all have come."""
    step = StepBuilder(job)
    parameters = sum(layer.trained_parameters for layer in job.layers)
    size_bytes = float(parameters * job.element_bytes)
    nodes = [worker // job.cluster.node.devices for worker in range(strategy.workers)]
    ranks = [step.add_rank(f"worker {worker}", worker, node) for worker, node in enumerate(nodes)]
    # a step begins once the one before has ended: its parameters are then what neighbours get
    begins = [step.wait(rank, Phase.SYNCHRONISE, []) for rank in ranks]
    messages: list[list[int]] = [[] for _ in ranks]
    for worker, rank in enumerate(ranks):
        for neighbour in strategy.neighbours(worker):
            row = step.message(rank, ranks[neighbour], size_bytes, Phase.SEND, [begins[worker], begins[neighbour]])
            # neither may change its parameters before they have been sent
            messages[worker].append(row)
            messages[neighbour].append(row)
    for worker, rank in enumerate(ranks):
        step.load(rank, nodes[worker])
        step.compute(rank, Phase.FORWARD, forward_s)
        step.compute(rank, Phase.BACKWARD, backward_s)
        step.wait(rank, Phase.SYNCHRONISE, messages[worker])
        step.compute(rank, Phase.OPTIMIZER, Update(parameters, size_bytes, len(strategy.neighbours(worker))))
    return step.priced()


class Update(NamedTuple):
    """The average with some neighbours' parameters, and the optimizer's step."""

    parameters: int
    size_bytes: float
    neighbours: int

    def __call__(self, costs: JobCosts) -> float:
        """Seconds on the job's device."""
        accesses = _OWN_ACCESSES + self.neighbours if self.neighbours else 0
        average_s = accesses * self.size_bytes / costs.job.cluster.device.memory_bandwidth_Bps
        return average_s + costs.job.optimizer_s(float(self.parameters))
