"""Parameter servers: workers push gradients, servers update parameters, workers pull them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.parameter_server import Bsp
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism.mesh import RankClass
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.program import Path, PathOf, Program, SecondsOf
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import CopyingThreads, ResourceMap
from scaleproof.simulator.strategy.parameter_server.ranks import (
    NodeRanks,
    WorkerGroup,
    rank_classes,
    ranks_on_nodes,
    worker_groups,
)
from scaleproof.simulator.strategy.parameter_server.shards import Bucket, buckets
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder

# Limit of messages between worker groups and server classes; at the limit, two steps need 10 s to build and simulate.
_MAX_MESSAGES: Final = 200_000
# Numbers of sets of concurrent transfers of each bucket: pushes of all workers, and pulls of all workers.
_PUSHES: Final = 0
_PULLS: Final = 1


def compile_parameter_server(strategy: ParameterServer, job: Job) -> Program:
    """One step of all workers. Raises FieldError if there are too many messages to simulate."""
    cluster = job.cluster
    # without overlap, one bucket has all gradients
    limit_bytes = strategy.bucket_bytes if strategy.overlap else math.inf
    bucket_list = buckets(
        job.layers, strategy.servers, strategy.shard, job.parameter_bytes, limit_bytes, strategy.sparse, strategy.workers,
        job.samples_per_worker,
    )  # fmt: skip
    nodes = ranks_on_nodes(strategy.workers, strategy.servers, cluster.node.devices, strategy.is_dedicated(cluster))
    return _ServedStep(strategy, job, nodes, bucket_list).program()


class ServerExchange(NamedTuple):
    """Exchange of a bucket between a class of workers and a class of servers, inside nodes or between them.

    servers: number of servers that each worker exchanges with. requests: number that each server receives. up_bytes,
    down_bytes: of a push and of a pull. up, down: their paths.
    """

    server: int
    inside: bool
    servers: int
    requests: int
    up_bytes: float
    down_bytes: float
    up: PathOf
    down: PathOf
    service_s: SecondsOf
    update_s: SecondsOf

    def add(
        self, builder: StepBuilder, worker: int, after: Sequence[int], bucket: int, layers: range | None = None,
        together: tuple[int, int] = (-1, -1), stage: int = -1,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Adds the push, its service and the pull of a class of workers; returns their rows. together: as in `Program`, of
        pushes and of pulls."""
        labels = [
            Communication.of(Dimension.SERVER, op, size_bytes, layers, self.servers)
            for op, size_bytes in ((Collective.PUSH, self.up_bytes), (Collective.PULL, self.down_bytes))
        ]
        push = builder.transfer(
            worker, self.server, self.up_bytes, self.up, Phase.SEND, after, stage, together=together[0], labels=labels[0]
        )
        serve = builder.serve(
            self.server, worker, Phase.OPTIMIZER, self.requests, self.service_s, self.update_s, (push,), bucket
        )
        pull = builder.transfer(
            self.server, worker, self.down_bytes, self.down, Phase.RECEIVE, (serve,), stage, together=together[1],
            labels=labels[1],
        )  # fmt: skip
        return push, serve, pull


class _BucketRows(NamedTuple):
    """Rows that bring a bucket of a worker group to the servers and back: the sum inside the group, pushes, services, pulls,
    and the broadcast inside the group."""

    sums: list[int]
    pushes: list[int]
    services: list[int]
    pulls: list[int]
    broadcast: Sequence[int] = ()


class _ServedStep:
    """Builds the program of one step."""

    def __init__(
        self, strategy: ParameterServer, job: Job, nodes: Mapping[int, NodeRanks], bucket_list: Sequence[Bucket]
    ) -> None:
        self._builder = StepBuilder(job, strategy.consistency, strategy.quota)
        self._strategy, self._job, self._buckets = strategy, job, bucket_list
        classes = rank_classes(strategy, job, nodes, bucket_list)
        self._servers = [ranks for ranks in classes if ranks.rank >= strategy.workers]
        self._groups = worker_groups([ranks for ranks in classes if ranks.rank < strategy.workers], nodes, strategy.two_level)
        messages = len(self._groups) * len(self._servers) * len(bucket_list)
        if messages > _MAX_MESSAGES:
            text = f"{messages} messages per step are too many to simulate; use fewer servers, or larger buckets"
            raise FieldError(("strategy", "servers"), text)
        self._ranks = {ranks: self._builder.add_class(ranks, ranks in self._servers) for ranks in classes}
        # on a single machine variables are in the process that trains
        self._is_one_process = len(nodes) == 1
        roles = [role for ranks in nodes.values() for role in ranks]
        self._device_of = {rank: place % job.cluster.node.devices for role in roles for place, rank in enumerate(role)}

    def program(self) -> Program:
        """The step: passes of all workers, and pushes, services and pulls of their buckets.

        Pushes overlap with the rest of the backward pass, pulls with it and the next forward pass. A step ends when its first
        layers can begin the next step; parameters of later layers are waited for where they are needed.
        """
        for worker in (worker for group in self._groups for worker in group.members):
            self._builder.load(self._ranks[worker], worker.node, worker.each, worker.ranks)
        passes = [(group, self._forward(group), self._backward(group)) for group in self._groups]
        for group, waits, gradients in passes:
            first, *others = self._synchronise(group, gradients)
            for rows, bucket in zip(waits, others, strict=True):
                self._builder.carry(rows[0], bucket.services)
                self._builder.carry(rows[1], bucket.pulls)
                for row in rows[2:]:
                    self._builder.carry(row, bucket.broadcast)
            leader = group.members[:1]
            self._wait(group.members, Phase.SYNCHRONISE, first.sums)
            self._wait(leader, Phase.SEND, [push for bucket in (first, *others) for push in bucket.pushes])
            self._wait(leader, Phase.WAIT, first.services)
            self._wait(leader, Phase.RECEIVE, first.pulls)
            self._wait(group.members, Phase.SYNCHRONISE, first.broadcast)
        return self._builder.priced()

    def _forward(self, group: WorkerGroup) -> list[list[int]]:
        """Adds forward passes of a group, divided where another bucket is needed. Returns for each of these buckets the rows
        that wait for it: the leader's for the reply and for the pull, and each member's for the broadcast."""
        leader, listeners = self._ranks[group.members[0]], group.members if len(group.workers) > 1 else ()
        waiting = [
            (leader, Phase.WAIT),
            (leader, Phase.RECEIVE),
            *((self._ranks[worker], Phase.SYNCHRONISE) for worker in listeners),
        ]
        rollout_s = self._strategy.rollout_s
        waits, begin = [], 0
        for end in [bucket.layer for bucket in self._buckets[1:]]:
            if not rollout_s:
                self._passes(group, Phase.FORWARD, begin, end)
                begin = end
            waits.append([self._builder.wait(rank, phase, []) for rank, phase in waiting])
        # samples are generated with all parameters
        for worker in group.members if rollout_s else ():
            self._builder.compute(self._ranks[worker], Phase.INPUT, rollout_s)
        self._passes(group, Phase.FORWARD, begin, len(self._job.layers))
        return waits

    def _backward(self, group: WorkerGroup) -> list[list[int]]:
        """Adds backward passes of a group, divided where a bucket is complete. Returns for each bucket the rows that complete
        it."""
        begin, gradients = len(self._job.layers), list[int]()
        result: list[list[int]] = []
        for bucket in reversed(self._buckets):
            if bucket.layer < begin:
                gradients = self._passes(group, Phase.BACKWARD, bucket.layer, begin)
                begin = bucket.layer
            result.append(gradients)
        return result[::-1]

    def _passes(self, group: WorkerGroup, phase: Phase, begin: int, end: int) -> list[int]:
        """Adds each member's pass over some layers; returns the rows, none if there are no layers."""

        def seconds(costs: JobCosts) -> float:
            layers = costs.layers()
            return float((layers.forward_s if phase == Phase.FORWARD else layers.backward_s)[begin:end].sum())

        members = group.members if begin < end else ()
        return [self._builder.compute(self._ranks[worker], phase, seconds) for worker in members]

    def _synchronise(self, group: WorkerGroup, gradients: Sequence[Sequence[int]]) -> list[_BucketRows]:
        """Adds the push of each of a group's buckets once it is complete, the servers' services, and pulls. Returns the rows of
        each bucket. gradients: rows that complete each bucket."""
        worker, result = self._ranks[group.members[0]], list[_BucketRows]()
        # one after another to each server, as over one connection (ps-lite has one per pair): concurrent messages of a worker
        # would take bandwidth of the server's card from other workers in proportion to their number
        previous_push: dict[tuple[int, bool], list[int]] = {}
        for number, bucket in reversed(list(enumerate(self._buckets))):
            sums = self._collective(group, "reduce", number, gradients[number])
            rows = _BucketRows(sums, [], [], [])
            for exchange in self._exchanges(group, bucket):
                connection = exchange.server, exchange.inside
                after = [*(sums or gradients[number]), *previous_push.get(connection, [])]
                together = 2 * number + _PUSHES, 2 * number + _PULLS
                added = exchange.add(self._builder, worker, after, number, self._layers(number), together)
                for column, row in zip((rows.pushes, rows.services, rows.pulls), added, strict=True):
                    column.append(row)
                previous_push[connection] = [added[0]]
            result.append(rows)
        # the first layers' parameters are broadcast first
        return [
            rows._replace(broadcast=self._collective(group, "broadcast", number, rows.pulls))
            for number, rows in enumerate(reversed(result))
        ]

    def _wait(self, members: Sequence[RankClass], phase: Phase, after: Sequence[int]) -> None:
        for worker in members if after else ():
            self._builder.wait(self._ranks[worker], phase, after)

    def _exchanges(self, group: WorkerGroup, bucket: Bucket) -> Iterator[ServerExchange]:
        """Exchanges with each class of servers, across the network and inside a node."""
        worker = group.leader
        for server in self._servers:
            shard = server.rank - self._strategy.workers
            sizes_bytes = float(bucket.pushed_bytes[shard]), float(bucket.pulled_bytes[shard])
            if sizes_bytes[0] == 0:
                continue
            service = self._service(bucket, shard)
            shares_node = worker.node == server.node
            servers, workers = server.each * (server.nodes - shares_node), worker.each * (worker.nodes - shares_node)
            if servers and workers:
                counts = worker.each * servers, server.each * workers
                # a server belongs to no device: its messages use all cards
                pushed, pulled = self._threads(worker, server, counts), self._threads(server, worker, counts[::-1])
                up: PathOf = partial(between, worker.node, server.node, sizes_bytes[0], counts, threads=pushed)
                down: PathOf = partial(between, server.node, worker.node, sizes_bytes[1], counts[::-1], threads=pulled)
                yield ServerExchange(self._ranks[server], False, servers, workers, *sizes_bytes, up, down, *service)
            if shares_node:
                up, down = self._inside(worker, server, sizes_bytes[0]), self._inside(server, worker, sizes_bytes[1])
                yield ServerExchange(self._ranks[server], True, server.each, worker.each, *sizes_bytes, up, down, *service)

    def _inside(self, source: RankClass, target: RankClass, size_bytes: float) -> PathOf:
        """Path of the messages between all ranks of two classes on a node."""
        names = [ranks.name("server" if ranks in self._servers else "worker") for ranks in (source, target)]
        devices = self._device_of[source.rank], self._device_of[target.rank]
        counts = target.each, source.each, source.each * target.each
        threads = self._threads(source, target, (counts[2], counts[2]))
        return partial(_inside, source.node, names, devices, size_bytes, counts, threads=threads)

    def _threads(self, source: RankClass, target: RankClass, counts: tuple[float, float]) -> tuple[CopyingThreads, ...]:
        """Threads that copy messages from one class of ranks to another. counts: messages at either end."""
        rpc = self._job.framework.rpc
        if rpc is None or self._is_one_process:
            return ()
        ends = (source, counts[0], rpc.send_Bps), (target, counts[1], rpc.receive_Bps)
        roles = ["server" if one in self._servers else "worker" for one, _, _ in ends]
        return tuple(
            CopyingThreads(f"node {one.node} {role} thread", one.each, count, rate_Bps)
            for role, (one, count, rate_Bps) in zip(roles, ends, strict=True)
        )

    def _service(self, bucket: Bucket, server: int) -> tuple[SecondsOf, SecondsOf]:
        """Seconds of handling a push, and of the update of a step; asynchronous servers update for each push, and have no
        update per step."""
        if not isinstance(self._strategy.consistency, Bsp):
            return partial(update_s, float(bucket.touched[server])), 0.0
        sum_ = partial(sum_s, float(bucket.pulled_bytes[server]))
        return sum_, partial(update_s, float(bucket.touched_by_all[server]))

    def _layers(self, number: int) -> range:
        """Layers of a bucket."""
        begin = self._buckets[number].layer
        following = [*(bucket.layer for bucket in self._buckets[number + 1 :]), len(self._job.layers)]
        return range(begin, max(begin + 1, following[0]))

    def _collective(self, group: WorkerGroup, op: Op, number: int, after: Sequence[int]) -> list[int]:
        """Adds a collective over a group's gradients or parameters of a bucket; nothing for a group of one worker or class."""
        if len(group.workers) < 2:
            return []
        ranks = Group.of(list(group.workers), self._job.cluster.node.devices)
        size_bytes = self._buckets[number].all_bytes
        members, layers = [self._ranks[worker] for worker in group.members], self._layers(number)
        nodes = [group.leader.node]
        return [self._builder.collective_of(op, ranks, size_bytes, members, nodes, after, Dimension.SERVER, layers)]


def between(
    source: int, target: int, size_bytes: float, counts: tuple[float, float], links: ResourceMap,
    threads: tuple[CopyingThreads, ...] = (),
) -> Path:  # fmt: skip
    """Path between two nodes. counts: equivalent messages that leave the source, and that reach the target. threads: those that
    copy them."""
    return links.copied(links.between(source, target, size_bytes, *counts), threads)


def _inside(
    node: int,
    names: Sequence[str],
    devices: tuple[int, int],
    size_bytes: float,
    counts: tuple[int, int, int],
    links: ResourceMap,
    threads: tuple[CopyingThreads, ...] = (),
) -> Path:
    """Path between two ranks of a node. counts: equivalent messages that leave the first, that reach the second, and in all.
    threads: those that copy them."""
    return links.copied(links.inside(node, names[0], names[1], size_bytes, *counts, devices), threads)


def sum_s(size_bytes: float, costs: JobCosts) -> Any:
    """Seconds in which a server adds a pushed gradient."""
    return costs.job.cluster.sum_s(size_bytes)


def update_s(parameters: float, costs: JobCosts) -> Any:
    """Seconds in which a server updates parameters."""
    return costs.job.cluster.update_s(parameters, costs.job.optimizer, costs.job.precision)
