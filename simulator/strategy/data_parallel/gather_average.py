"""Gather and average: textbook data parallelism, in which one worker collects all gradients and distributes parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism.gather_average import GatherAverage
from scaleproof.simulator.parallelism.mesh import Placed, place
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.strategy.data_parallel.data_loading import BatchLoader
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Adding a gradient to a sum reads two and writes one.
_SUM_ACCESSES: Final = 3
# Numbers of sets of concurrent transfers.
_GATHER: Final = 0
_BROADCAST: Final = 1


def compile_gather_average(strategy: GatherAverage, job: Job) -> Program:
    """Passes of all workers, the gather, the main worker's sum and update, and the broadcast."""
    builder = ProgramBuilder()
    resource_map = ResourceMap(job.cluster, builder)
    worker_classes = place(strategy.workers, job.cluster.node.devices, _distinguishable_ranks(strategy.workers, job))
    batches, costs = BatchLoader(builder, job), job.costs()
    ranks, gradients = [], []
    for worker_class in worker_classes:
        name = f"{worker_class.ranks} workers" if worker_class.ranks > 1 else f"worker {worker_class.rank}"
        rank = resource_map.add_rank(
            name, job.unevenness, worker_class.rank, worker_class.node, worker_class.each, worker_class.ranks,
            is_emulated=job.is_emulated,
        )  # fmt: skip
        batches.add(rank, worker_class.node, worker_class.each, worker_class.ranks)
        builder.compute(rank, Phase.FORWARD, costs.forward_s.sum())
        gradients.append(builder.compute(rank, Phase.BACKWARD, costs.backward_s.sum()))
        ranks.append(rank)
    main, others = ranks[0], ranks[1:]
    parameters = float(costs.parameters.sum())
    size_bytes = parameters * job.parameter_bytes
    paths = [_paths(resource_map, worker_class, size_bytes) for worker_class in worker_classes[1:]]
    gather = Communication.of(Dimension.DATA, "gather", size_bytes)
    distribute = Communication.of(Dimension.DATA, "broadcast", size_bytes)
    gathered = [
        builder.transfer(rank, main, size_bytes, to_main, Phase.SEND, (ready,), together=_GATHER, labels=gather)
        for rank, (to_main, _), ready in zip(others, paths, gradients[1:], strict=True)
    ]
    for rank, sent in zip(others, gathered, strict=True):
        builder.wait(rank, Phase.SEND, [sent])
    builder.wait(main, Phase.RECEIVE, gathered)
    sum_s = (strategy.workers - 1) * _SUM_ACCESSES * size_bytes / job.cluster.device.memory_bandwidth_Bps
    updated = builder.compute(main, Phase.OPTIMIZER, sum_s + job.optimizer_s(parameters))
    broadcast = [
        builder.transfer(
            main,
            rank,
            size_bytes,
            from_main,
            Phase.SEND,
            (updated,),
            together=_BROADCAST,
            labels=distribute._replace(calls=worker_class.ranks),
        )
        for rank, worker_class, (_, from_main) in zip(others, worker_classes[1:], paths, strict=True)
    ]
    for rank, received in zip(others, broadcast, strict=True):
        builder.wait(rank, Phase.SYNCHRONISE, [received])
    builder.wait(main, Phase.SEND, broadcast)
    return builder.build()


def _distinguishable_ranks(workers: int, job: Job) -> Collection[int]:
    """The main worker and other distinguishable ranks; all, if messages of folded workers would not share links
    correctly."""
    if job.cluster.is_uniform and job.cluster.node.cards_used == 1:
        return {0, *job.distinguishable_ranks(workers)}
    return range(workers)


def _paths(resource_map: ResourceMap, worker_class: Placed, size_bytes: float) -> tuple[Path, Path]:
    """Paths of a message to the main worker (node 0, device 0) and of one back, for each of a class of concurrent workers."""
    device = worker_class.rank % resource_map.cluster.node.devices
    inward, outward = (device, 0), (0, device)
    if worker_class.node > 0:
        to_main = resource_map.between(worker_class.node, 0, size_bytes, worker_class.each, worker_class.ranks, inward)
        return to_main, resource_map.between(0, worker_class.node, size_bytes, worker_class.ranks, worker_class.each, outward)
    names, each = (f"node 0 device {device}", "node 0 device 0"), worker_class.each
    to_main = resource_map.inside(0, *names, size_bytes, 1, each, each, inward)
    return to_main, resource_map.inside(0, *names[::-1], size_bytes, each, 1, each, outward)
