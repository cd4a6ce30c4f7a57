"""Replicas that synchronise through parameter servers, to which every rank pushes the gradients of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.program import PathOf
from scaleproof.simulator.strategy.data_parallel.buckets import ends
from scaleproof.simulator.strategy.parameter_server.program import ServerExchange, between, sum_s, update_s
from scaleproof.simulator.strategy.pipeline.replica import CompileContext, Replica


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
        servers[node] = context.builder.add_rank(
            name, plan.ranks + number, node, multiplicity=servers_per_class, is_server=True
        )
    for stage in range(plan.stages):
        for replica in replicas:
            _add_requests(context, replica, stage, servers, servers_per_class)


def _add_requests(
    context: CompileContext, replica: Replica, stage: int, servers: Mapping[int, int], servers_per_class: int
) -> None:
    """Adds pushes, services and pulls of one class of ranks, and the ranks' waits. servers: rank class on each server node, of
    `servers_per_class` equivalent servers each."""
    plan, job, builder, rank = context.plan, context.job, context.builder, replica.ranks[stage]
    ranks = replica.workers.ranks * plan.model_parallel_size
    rows: list[list[int]] = [[], [], []]
    for bucket, parameters in _pushed(context, stage).items():
        size_bytes = parameters * job.parameter_bytes / plan.servers
        worker_node, counts = replica.places[stage][0], (replica.concurrent_senders * servers_per_class, ranks)
        sum_, update = partial(sum_s, size_bytes), partial(update_s, _updated(context, bucket))
        for node, server in servers.items():
            up: PathOf = partial(between, worker_node, node, size_bytes, counts)
            down: PathOf = partial(between, node, worker_node, size_bytes, counts[::-1])
            exchange = ServerExchange(server, False, servers_per_class, ranks, size_bytes, size_bytes, up, down, sum_, update)
            added = exchange.add(builder, rank, [replica.last_rows[stage]], bucket, stage=stage)
            for column, row in zip(rows, added, strict=True):
                column.append(row)
    for phase, waited in zip((Phase.SEND, Phase.WAIT, Phase.RECEIVE), rows, strict=True):
        builder.wait(rank, phase, waited, stage if plan.stages > 1 else -1)


def _pushed(context: CompileContext, stage: int) -> dict[int, int]:
    """Number of parameters that a rank pushes, by the stage with which they are updated; copies of weights belong to the first
    stage."""
    pushed, (first, last) = {stage: sum(layer.trained_parameters for layer in _layers(context, stage))}, ends(context.plan)
    copied = context.rank_layers.copied
    return pushed | ({first: copied} if stage == last and copied else {})


def _updated(context: CompileContext, stage: int) -> float:
    """Number of parameters in a server's shard of a stage, of which expert-parallel ranks have different experts."""
    plan, layers = context.plan, _layers(context, stage)
    experts = sum(layer.expert_parameters for layer in layers)
    rest = sum(layer.trained_parameters for layer in layers) - experts
    whole = plan.tensor * rest + plan.expert * plan.expert_shards * experts
    return whole / plan.servers


def _layers(context: CompileContext, stage: int) -> list[Layer]:
    return [context.job.layers[i] for part in context.plan.stage_of[stage] for i in context.ranges[part]]
