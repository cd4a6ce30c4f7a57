"""Gather and average: textbook data parallelism, in which one worker collects all gradients and distributes parameters."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism.gather_average import GatherAverage
from scaleproof.simulator.parallelism.mesh import RankClass, place
from scaleproof.simulator.program import Path, Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder, backward_s, forward_s

# Adding a gradient to a sum reads two and writes one.
_SUM_ACCESSES: Final = 3
# Numbers of sets of concurrent transfers.
_GATHER: Final = 0
_BROADCAST: Final = 1


def compile_gather_average(strategy: GatherAverage, job: Job) -> Program:
    """Passes of all workers, the gather, the main worker's sum and update, and the broadcast."""
    builder = StepBuilder(job)
    worker_classes = place(strategy.workers, job.cluster.node.devices, _distinguishable_ranks(strategy.workers, job))
    ranks, gradients = [], []
    for worker_class in worker_classes:
        rank = builder.add_class(worker_class)
        builder.load(rank, worker_class.node, worker_class.each, worker_class.ranks)
        builder.compute(rank, Phase.FORWARD, forward_s)
        gradients.append(builder.compute(rank, Phase.BACKWARD, backward_s))
        ranks.append(rank)
    main, others = ranks[0], ranks[1:]
    parameters = float(sum(layer.trained_parameters for layer in job.layers))
    size_bytes = parameters * job.parameter_bytes
    gather = Communication.of(Dimension.DATA, "gather", size_bytes)
    distribute = Communication.of(Dimension.DATA, "broadcast", size_bytes)
    gathered = [
        builder.transfer(
            rank, main, size_bytes, partial(_path, worker_class, size_bytes, True), Phase.SEND, (ready,), together=_GATHER,
            labels=gather,
        )
        for rank, worker_class, ready in zip(others, worker_classes[1:], gradients[1:], strict=True)
    ]  # fmt: skip
    for rank, sent in zip(others, gathered, strict=True):
        builder.wait(rank, Phase.SEND, [sent])
    builder.wait(main, Phase.RECEIVE, gathered)
    updated = builder.compute(main, Phase.OPTIMIZER, partial(_update_s, strategy.workers, parameters))
    broadcast = [
        builder.transfer(
            main, rank, size_bytes, partial(_path, worker_class, size_bytes, False), Phase.SEND, (updated,),
            together=_BROADCAST, labels=distribute._replace(calls=worker_class.ranks),
        )
        for rank, worker_class in zip(others, worker_classes[1:], strict=True)
    ]  # fmt: skip
    for rank, received in zip(others, broadcast, strict=True):
        builder.wait(rank, Phase.SYNCHRONISE, [received])
    builder.wait(main, Phase.SEND, broadcast)
    return builder.priced()


def _update_s(workers: int, parameters: float, costs: JobCosts) -> float:
    """Seconds of the main worker's sum of all gradients, and of its optimizer's step."""
    job = costs.job
    size_bytes = parameters * job.parameter_bytes
    sum_s = (workers - 1) * _SUM_ACCESSES * size_bytes / job.cluster.device.memory_bandwidth_Bps
    return sum_s + job.optimizer_s(parameters)


def _distinguishable_ranks(workers: int, job: Job) -> Collection[int]:
    """The main worker and other distinguishable ranks; all, if messages of folded workers would not share links
    correctly."""
    if job.cluster.is_uniform and job.cluster.node.cards_used == 1:
        return {0, *job.distinguishable_ranks(workers)}
    return range(workers)


def _path(worker_class: RankClass, size_bytes: float, to_main: bool, links: ResourceMap) -> Path:
    """Path of a message between each of a class of concurrent workers and the main worker, which is on node 0, device 0."""
    device, each = worker_class.rank % links.cluster.node.devices, worker_class.each
    nodes, devices, counts = (worker_class.node, 0), (device, 0), (each, worker_class.ranks)
    if worker_class.node == 0:
        names, counts = ("node 0 device " + str(device), "node 0 device 0"), (1, each)
        ends = (names, counts, devices) if to_main else (names[::-1], counts[::-1], devices[::-1])
        return links.inside(0, *ends[0], size_bytes, *ends[1], each, ends[2])
    if to_main:
        return links.between(*nodes, size_bytes, *counts, devices)
    return links.between(*nodes[::-1], size_bytes, *counts[::-1], devices[::-1])
