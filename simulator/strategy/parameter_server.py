"""Synchronous parameter servers: workers push gradients, servers sum and update, workers pull parameters."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from pydantic import Field

from simulator.cluster import Cluster
from simulator.program import Path, Program, ProgramBuilder
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Job
from simulator.strategy.fabric import Fabric


class ParameterServer(Strategy):
    """`workers` train on their shares; `servers` hold equal shards of the parameters, by bytes.

    placement: dedicated servers have machines of their own, colocated ones run on the workers' machines and share their
    network cards. On a cluster of one machine all processes share it either way.
    """

    kind: Literal["parameter_server"] = "parameter_server"
    workers_: Count = Field(1, alias="workers")
    servers_: Count = Field(1, alias="servers")
    placement: Literal["dedicated", "colocated"] = "dedicated"

    @property
    def workers(self) -> int:
        return self.workers_

    @property
    def servers(self) -> int:
        return self.servers_

    def nodes_needed(self, cluster: Cluster) -> int:
        """Nodes that workers and dedicated servers take."""
        worker_nodes = -(-self.workers // cluster.node.devices)
        return worker_nodes + self.servers if self.placement == "dedicated" and cluster.nodes > 1 else worker_nodes

    def compile(self, job: Job) -> Program:
        """Each worker's passes, then a push to every server, the wait for the servers' update, and the pull."""
        builder = ProgramBuilder()
        fabric = Fabric(job.cluster, builder)
        kinds = self._node_kinds(job.cluster)
        workers, servers = _add_ranks(builder, fabric, kinds)
        costs = job.costs()
        backward: dict[int, int] = {}
        for rank in workers.values():
            builder.compute(rank, Phase.FORWARD, float(costs.forward_s.sum()))
            backward[rank] = builder.compute(rank, Phase.BACKWARD, float(costs.backward_s.sum()))
        parameters = float(costs.parameters.sum()) / self.servers
        shard = _Shard(
            size_bytes=parameters * job.element_bytes,
            sum_s=job.cluster.sum_s(parameters * job.element_bytes),
            update_s=job.cluster.update_s(parameters, job.optimizer, job.precision),
        )
        for here, rank in workers.items():
            rows: list[tuple[int, int, int]] = []
            for there, server in servers.items():
                rows += _rpcs(builder, fabric, (here, rank), (there, server), shard, backward[rank])
            pushes, services, pulls = zip(*rows, strict=True)
            builder.wait(rank, Phase.SEND, pushes)
            builder.wait(rank, Phase.WAIT, services)
            builder.wait(rank, Phase.RECEIVE, pulls)
        return builder.build()

    def _node_kinds(self, cluster: Cluster) -> list[_NodeKind]:
        """Nodes grouped by how many workers and servers they have: nodes of one kind are alike."""
        per_node = cluster.node.devices
        worker_nodes = -(-self.workers // per_node)
        workers = Counter({node: min(per_node, self.workers - node * per_node) for node in range(worker_nodes)})
        dedicated = self.placement == "dedicated" and cluster.nodes > 1
        servers = Counter(worker_nodes + j if dedicated else j % worker_nodes for j in range(self.servers))
        nodes: dict[tuple[int, int], list[int]] = {}
        for node in sorted(workers.keys() | servers.keys()):
            nodes.setdefault((workers[node], servers[node]), []).append(node)
        return [_NodeKind(alike[0], len(alike), *counts) for counts, alike in nodes.items()]


class _NodeKind(NamedTuple):
    """`nodes` alike nodes, each with so many workers and servers; `node` stands for all."""

    node: int
    nodes: int
    workers: int
    servers: int


class _Shard(NamedTuple):
    size_bytes: float
    sum_s: float
    update_s: float


def _add_ranks(
    builder: ProgramBuilder, fabric: Fabric, kinds: list[_NodeKind]
) -> tuple[dict[_NodeKind, int], dict[_NodeKind, int]]:
    """Rank classes of workers and of servers, by the kind of node they are on."""
    workers = {
        kind: builder.rank(
            f"workers on nodes like {kind.node}",
            multiplicity=kind.nodes * kind.workers,
            uses=fabric.compute_uses(kind.node, kind.workers),
        )
        for kind in kinds
        if kind.workers
    }
    servers = {
        kind: builder.rank(
            f"servers on nodes like {kind.node}",
            multiplicity=kind.nodes * kind.servers,
            is_server=True,
            uses=fabric.compute_uses(kind.node, kind.servers),
        )
        for kind in kinds
        if kind.servers
    }
    return workers, servers


def _rpcs(
    builder: ProgramBuilder,
    fabric: Fabric,
    worker: tuple[_NodeKind, int],
    server: tuple[_NodeKind, int],
    shard: _Shard,
    after: int,
) -> list[tuple[int, int, int]]:
    """Requests of a class of workers to a class of servers: those that cross the network and those that stay in a node."""
    (here, rank), (there, server_rank) = worker, server
    same = here == there
    elsewhere_servers = there.servers * (there.nodes - same)
    elsewhere_workers = here.workers * (here.nodes - same)
    rows = []
    if elsewhere_servers and elsewhere_workers:
        out_of_worker, into_server = here.workers * elsewhere_servers, there.servers * elsewhere_workers
        up = fabric.between(here.node, there.node, out_of_worker, into_server)
        down = fabric.between(there.node, here.node, into_server, out_of_worker)
        rows.append(_rpc(builder, rank, server_rank, elsewhere_workers, shard, up, down, after))
    if same:
        names = f"worker on {here.node}", f"server on {here.node}"
        pairs = here.workers * here.servers
        up = fabric.inside(here.node, *names, here.servers, here.workers, pairs)
        down = fabric.inside(here.node, *names[::-1], here.workers, here.servers, pairs)
        rows.append(_rpc(builder, rank, server_rank, here.workers, shard, up, down, after))
    return rows


def _rpc(
    builder: ProgramBuilder, worker: int, server: int, requests: int, shard: _Shard, up: Path, down: Path, after: int
) -> tuple[int, int, int]:
    """Push, service and pull of alike requests; returns their rows."""
    push = builder.transfer(worker, server, shard.size_bytes, up, Phase.SEND, (after,))
    serve = builder.serve(server, worker, Phase.OPTIMIZER, requests, shard.sum_s, shard.update_s, (push,))
    pull = builder.transfer(server, worker, shard.size_bytes, down, Phase.RECEIVE, (serve,))
    return push, serve, pull
