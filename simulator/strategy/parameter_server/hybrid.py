"""Served: replicas that keep their parameters alike through servers, with which every rank exchanges its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.program import Path
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.gradient_sync import ends, with_copies
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica


def add_servers(shop: CompileContext, job: Job, replicas: Sequence[Replica]) -> None:
    """Servers on nodes behind those that train hold equal shards of every tensor of every stage, all workers' experts among
    them. All ranks push the gradients of theirs; once all have come the servers update, and all ranks pull."""
    plan = shop.plan
    alone = not job.cluster.is_uniform or any(rank >= plan.ranks for rank in job.apart(plan.ranks + plan.servers))
    each = 1 if alone else plan.servers
    servers = {}
    for number in range(plan.servers // each):
        node = -(-plan.ranks // shop.grid.devices) + number
        name = f"server {plan.ranks + number}" if each == 1 else f"{each} servers"
        servers[node] = shop.fabric.add_rank(
            name, job.unevenness, plan.ranks + number, node, multiplicity=each, is_server=True
        )  # fmt: skip
    for stage in range(plan.stages):
        for replica in replicas:
            _add_requests(shop, job, replica, stage, servers, each)


def _add_requests(shop: CompileContext, job: Job, replica: Replica, stage: int, servers: Mapping[int, int], each: int) -> None:
    """What one class of ranks pushes to and pulls from `each` alike servers, or from every one; and its waits for that.

    servers: the class on each node.
    """
    plan, builder, rank = shop.plan, shop.builder, replica.ranks[stage]
    ranks = replica.placed.ranks * plan.lockstep
    rows: list[list[int]] = [[], [], []]
    for bucket, parameters in _pushed(shop, job, stage).items():
        size_bytes = parameters * job.element_bytes / plan.servers
        sum_s, update_s = job.cluster.sum_s(size_bytes), _update_s(shop, job, bucket)
        for node, server in servers.items():
            up, down = _paths(shop, replica.places[stage][0], node, size_bytes, (replica.alike * each, ranks))
            push = builder.transfer(rank, server, size_bytes, up, Phase.SEND, [replica.last_rows[stage]], stage)
            serve = builder.serve(server, rank, Phase.OPTIMIZER, ranks, sum_s, update_s, (push,), bucket=bucket)
            pull = builder.transfer(server, rank, size_bytes, down, Phase.RECEIVE, (serve,), stage)
            for column, row in zip(rows, (push, serve, pull), strict=True):
                column.append(row)
    for phase, waited in zip((Phase.SEND, Phase.WAIT, Phase.RECEIVE), rows, strict=True):
        builder.wait(rank, phase, waited, stage if plan.stages > 1 else -1)


def _pushed(shop: CompileContext, job: Job, stage: int) -> dict[int, int]:
    """Parameters that a rank has, by the bucket of the stage that they are updated with: copies of weights with the first."""
    pushed, (first, last) = {stage: sum(layer.parameters for layer in _layers(shop, job, stage))}, ends(shop.plan)
    copied = with_copies(job.layers, shop.plan)[-1].parameters - job.layers[-1].parameters
    return pushed | ({first: copied} if stage == last and copied else {})


def _update_s(shop: CompileContext, job: Job, stage: int) -> float:
    """Seconds that a server takes to update its shard of a stage, of which expert-parallel ranks have different experts."""
    plan, layers = shop.plan, _layers(shop, job, stage)
    experts = sum(layer.expert_parameters for layer in layers)
    rest = sum(layer.parameters for layer in layers) - experts
    whole = plan.tensor * rest + plan.expert * (plan.expert_tensor or plan.tensor) * experts
    return job.cluster.update_s(whole / plan.servers, job.optimizer, job.precision)


def _layers(shop: CompileContext, job: Job, stage: int) -> list[Layer]:
    return [job.layers[i] for part in shop.plan.stage_of[stage] for i in shop.ranges[part]]


def _paths(shop: CompileContext, node: int, server_node: int, size_bytes: float, counts: tuple[int, int]) -> tuple[Path, Path]:
    """Up to a server and down from it. counts: alike messages that leave the ranks' node, and that reach the server's."""
    fabric = shop.fabric
    return fabric.between(node, server_node, size_bytes, *counts), fabric.between(server_node, node, size_bytes, *counts[::-1])
