"""Synchronous parameter servers: workers push gradients, servers sum and update, workers pull parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import Field

from simulator.cluster import Cluster
from simulator.program import Path, Program, ProgramBuilder
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Job
from simulator.strategy.fabric import Fabric
from simulator.strategy.feeding import Feeding

# what runs at the same time by construction: all workers push together, all servers answer together
_PUSHES: Final = 0
_PULLS: Final = 1


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
        classes = self._classes(job)
        ranks = {
            alike: fabric.add_rank(
                alike.name, job.unevenness, alike.rank, alike.node, alike.each, alike.nodes * alike.each, alike.is_server
            )
            for alike in classes
        }
        costs = job.costs()
        parameters = float(costs.parameters.sum()) / self.servers
        shard = _Shard(
            size_bytes=parameters * job.element_bytes,
            sum_s=job.cluster.sum_s(parameters * job.element_bytes),
            update_s=job.cluster.update_s(parameters, job.optimizer, job.precision),
        )
        backward: dict[_Class, int] = {}
        workers = [alike for alike in classes if not alike.is_server]
        feeding = Feeding(builder, job)
        for here in workers:
            feeding.add(ranks[here], here.node, here.each, here.nodes * here.each)
            builder.compute(ranks[here], Phase.FORWARD, float(costs.forward_s.sum()))
            backward[here] = builder.compute(ranks[here], Phase.BACKWARD, float(costs.backward_s.sum()))
        for here in workers:
            rpcs = _Rpcs(builder, fabric, shard, ranks[here], backward[here])
            for there in classes:
                if there.is_server:
                    rpcs.add(here, there, ranks[there])
            builder.wait(ranks[here], Phase.SEND, rpcs.pushes)
            builder.wait(ranks[here], Phase.WAIT, rpcs.services)
            builder.wait(ranks[here], Phase.RECEIVE, rpcs.pulls)
        return builder.build()

    def _classes(self, job: Job) -> list[_Class]:
        """Alike ranks on alike nodes; what is told apart, or where nodes are not joined alike, each on its own."""
        cluster, per_node = job.cluster, job.cluster.node.devices
        worker_nodes = -(-self.workers // per_node)
        dedicated = self.placement == "dedicated" and cluster.nodes > 1
        on_node: dict[int, tuple[list[int], list[int]]] = {
            node: (list(range(node * per_node, min((node + 1) * per_node, self.workers))), []) for node in range(worker_nodes)
        }
        for j in range(self.servers):
            node = worker_nodes + j if dedicated else j % worker_nodes
            on_node.setdefault(node, ([], []))[1].append(self.workers + j)
        apart = job.apart(self.ranks) if cluster.is_uniform else range(self.ranks)
        alike: dict[tuple[int, ...], list[int]] = {}
        for node, (workers, servers) in on_node.items():
            own = any(rank in apart for rank in (*workers, *servers))
            alike.setdefault((node,) if own else (len(workers), len(servers)), []).append(node)
        return [one for nodes in alike.values() for one in _classes_on(nodes, *on_node[nodes[0]], apart, per_node)]


class _Class(NamedTuple):
    """`each` alike ranks on every one of `nodes` alike nodes; `node`, `device` and `rank` are the first's."""

    node: int
    nodes: int
    each: int
    rank: int
    device: int
    is_server: bool

    @property
    def name(self) -> str:
        role = "server" if self.is_server else "worker"
        return f"{role}s on nodes like {self.node}" if self.nodes * self.each > 1 else f"{role} {self.rank}"


class _Shard(NamedTuple):
    size_bytes: float
    sum_s: float
    update_s: float


def _classes_on(
    nodes: Sequence[int], workers: list[int], servers: list[int], apart: Collection[int], devices: int
) -> list[_Class]:
    """The classes on alike nodes, of which the first has these workers and servers."""
    result = []
    for ranks, is_server in ((workers, False), (servers, True)):
        together = [rank for rank in ranks if rank not in apart]
        singles = [rank for rank in ranks if rank in apart]
        for members in ([together] if together else []) + [[rank] for rank in singles]:
            first = members[0]
            result.append(_Class(nodes[0], len(nodes), len(members), first, ranks.index(first) % devices, is_server))
    return result


class _Rpcs:
    """The requests of one class of workers, whose backward pass is row `after`; rows of pushes, services and pulls."""

    def __init__(self, builder: ProgramBuilder, fabric: Fabric, shard: _Shard, worker: int, after: int) -> None:
        self.pushes: list[int] = []
        self.services: list[int] = []
        self.pulls: list[int] = []
        self._builder = builder
        self._fabric = fabric
        self._shard = shard
        self._worker = worker
        self._after = after

    def add(self, here: _Class, there: _Class, server: int) -> None:
        """To a class of servers: those that cross the network, and those that stay in a node."""
        same, size_bytes = here.node == there.node, self._shard.size_bytes
        elsewhere_servers = there.each * (there.nodes - same)
        elsewhere_workers = here.each * (here.nodes - same)
        if elsewhere_servers and elsewhere_workers:
            out, into = here.each * elsewhere_servers, there.each * elsewhere_workers
            # a server is no device's: messages are spread over all cards
            up = self._fabric.between(here.node, there.node, size_bytes, out, into)
            down = self._fabric.between(there.node, here.node, size_bytes, into, out)
            self._rpc(server, elsewhere_workers, up, down)
        if same:
            pairs, names, devices = here.each * there.each, (here.name, there.name), (here.device, there.device)
            up = self._fabric.inside(here.node, *names, size_bytes, there.each, here.each, pairs, devices)
            down = self._fabric.inside(here.node, *names[::-1], size_bytes, here.each, there.each, pairs, devices[::-1])
            self._rpc(server, here.each, up, down)

    def _rpc(self, server: int, requests: int, up: Path, down: Path) -> None:
        """Push, service and pull of alike requests."""
        builder, shard = self._builder, self._shard
        push = builder.transfer(self._worker, server, shard.size_bytes, up, Phase.SEND, (self._after,), together=_PUSHES)
        serve = builder.serve(server, self._worker, Phase.OPTIMIZER, requests, shard.sum_s, shard.update_s, (push,))
        pull = builder.transfer(server, self._worker, shard.size_bytes, down, Phase.RECEIVE, (serve,), together=_PULLS)
        self.pushes.append(push)
        self.services.append(serve)
        self.pulls.append(pull)
