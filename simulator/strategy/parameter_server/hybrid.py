"""Replicas that synchronise through parameter servers, to which every rank pushes the gradients of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.program import Path
from scaleproof.simulator.strategy.data_parallel.buckets import ends
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica


def add_servers(context: CompileContext, replicas: Sequence[Replica]) -> None:
    """Adds servers on separate nodes behind those of the workers, with equal shards of every tensor of every stage, experts of
    all workers included. All ranks push their gradients; once all have arrived the servers update, and all ranks pull."""
    plan, job = context.plan, context.job
    separate = not job.cluster.is_uniform or any(
        rank >= plan.ranks for rank in job.distinguishable_ranks(plan.ranks + plan.servers)
    )
    servers_per_class = 1 if separate else plan.servers
    servers = {}
    for number in range(plan.servers // servers_per_class):
        node = -(-plan.ranks // context.mesh.devices) + number
        name = f"server {plan.ranks + number}" if servers_per_class == 1 else f"{servers_per_class} servers"
        servers[node] = context.resource_map.add_rank(
            name, job.unevenness, plan.ranks + number, node, multiplicity=servers_per_class, is_server=True
        )  # fmt: skip
    for stage in range(plan.stages):
        for replica in replicas:
            _add_requests(context, replica, stage, servers, servers_per_class)


def _add_requests(
    context: CompileContext, replica: Replica, stage: int, servers: Mapping[int, int], servers_per_class: int
) -> None:
    """Adds pushes, services and pulls of one class of ranks, and the ranks' waits. servers: rank class on each server node, of
    `servers_per_class` equivalent servers each."""
    plan, job, builder, rank = context.plan, context.job, context.builder, replica.ranks[stage]
    ranks = replica.placed.ranks * plan.model_parallel_size
    rows: list[list[int]] = [[], [], []]
    for bucket, parameters in _pushed(context, stage).items():
        size_bytes = parameters * job.parameter_bytes / plan.servers
        sum_s, update_s = job.cluster.sum_s(size_bytes), _update_s(context, bucket)
        for node, server in servers.items():
            up, down = _paths(
                context, replica.places[stage][0], node, size_bytes, (replica.concurrent_senders * servers_per_class, ranks)
            )
            labels = [
                Communication.of(Dimension.SERVER, one, size_bytes, calls=servers_per_class)
                for one in (Collective.PUSH, Collective.PULL)
            ]
            after = [replica.last_rows[stage]]
            push = builder.transfer(rank, server, size_bytes, up, Phase.SEND, after, stage, labels=labels[0])
            serve = builder.serve(server, rank, Phase.OPTIMIZER, ranks, sum_s, update_s, (push,), bucket=bucket)
            pull = builder.transfer(server, rank, size_bytes, down, Phase.RECEIVE, (serve,), stage, labels=labels[1])
            for column, row in zip(rows, (push, serve, pull), strict=True):
                column.append(row)
    for phase, waited in zip((Phase.SEND, Phase.WAIT, Phase.RECEIVE), rows, strict=True):
        builder.wait(rank, phase, waited, stage if plan.stages > 1 else -1)


def _pushed(context: CompileContext, stage: int) -> dict[int, int]:
    """Number of parameters that a rank pushes, by the stage with which they are updated; copies of weights belong to the first
    stage."""
    pushed, (first, last) = {stage: sum(layer.trained_parameters for layer in _layers(context, stage))}, ends(context.plan)
    copied = context.rank_layers.copied
    return pushed | ({first: copied} if stage == last and copied else {})


def _update_s(context: CompileContext, stage: int) -> float:
    """Seconds in which a server updates its shard of a stage, of which expert-parallel ranks have different experts."""
    plan, job, layers = context.plan, context.job, _layers(context, stage)
    experts = sum(layer.expert_parameters for layer in layers)
    rest = sum(layer.trained_parameters for layer in layers) - experts
    whole = plan.tensor * rest + plan.expert * (plan.expert_tensor or plan.tensor) * experts
    return job.cluster.update_s(whole / plan.servers, job.optimizer, job.precision)


def _layers(context: CompileContext, stage: int) -> list[Layer]:
    return [context.job.layers[i] for part in context.plan.stage_of[stage] for i in context.ranges[part]]


def _paths(
    context: CompileContext, node: int, server_node: int, size_bytes: float, counts: tuple[int, int]
) -> tuple[Path, Path]:
    """Paths to a server and from it. counts: equivalent messages that leave the ranks' node, and that reach the server's."""
    resource_map = context.resource_map
    return resource_map.between(node, server_node, size_bytes, *counts), resource_map.between(
        server_node, node, size_bytes, *counts[::-1]
    )
