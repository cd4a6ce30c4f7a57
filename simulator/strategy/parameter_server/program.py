"""Program of one step with parameter servers: passes, pushes, services and pulls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.consistency import Bsp, ConsistencyModel, WorkQuota
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import Path, PathOf, Program, SecondsOf
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.parameter_server.ranks import RankClass, WorkerGroup
from scaleproof.simulator.strategy.parameter_server.shards import Bucket
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder

# Numbers of sets of concurrent transfers of each bucket: pushes of all workers, and pulls of all workers.
_PUSHES: Final = 0
_PULLS: Final = 1


class _Message(NamedTuple):
    """Messages of a bucket between a worker group and a class of servers, inside nodes or between them.

    servers: number of servers that each group exchanges with. requests: number that each server receives.
    """

    server: int
    inside: bool
    servers: int
    requests: int
    size_bytes: float
    up: PathOf
    down: PathOf
    service_s: SecondsOf
    update_s: SecondsOf


class _Reply(NamedTuple):
    """Rows that bring a bucket from the servers to a worker group: services, pulls, and the broadcast inside the group."""

    services: list[int]
    pulls: list[int]
    broadcast: list[int]


class ServedStep:
    """Builds the program of one step."""

    def __init__(
        self, job: Job, consistency: ConsistencyModel, units: WorkQuota | None, rank_classes: Sequence[RankClass], groups:
        Sequence[WorkerGroup], buckets: Sequence[Bucket], rollout_s: float,
    ) -> None:  # fmt: skip
        """rollout_s: seconds in which a worker generates its samples."""
        self._builder = StepBuilder(job, consistency, units)
        self._job, self._rollout_s = job, rollout_s
        self._sums_pushes = isinstance(consistency, Bsp)
        self._groups, self._buckets = groups, buckets
        self._servers = [one for one in rank_classes if one.is_server]
        self._first_server = min(one.rank for one in self._servers)
        self._ranks = {
            one: self._builder.add_rank(one.name, one.rank, one.node, one.each, one.ranks, one.is_server)
            for one in rank_classes
        }

    def sequential(self) -> Program:
        """Each worker's passes, then a push to every server, the wait for the servers' reply, and the pull."""
        backward: dict[RankClass, list[int]] = {}
        for worker in self._workers():
            self._builder.load(self._ranks[worker], worker.node, worker.each, worker.ranks)
            self._make_samples(worker)
            self._pass(worker, Phase.FORWARD, 0, len(self._job.layers))
            backward[worker] = self._pass(worker, Phase.BACKWARD, 0, len(self._job.layers))
        for group in self._groups:
            gradients = [row for worker in group.members for row in backward[worker]]
            for number, bucket in enumerate(self._buckets):
                self._synchronise(group, number, bucket, gradients)
        return self._builder.priced()

    def _synchronise(self, group: WorkerGroup, number: int, bucket: Bucket, gradients: Sequence[int]) -> None:
        """Adds the push of a group's gradients, the pull of parameters, and the waits for both. gradients: tasks that compute
        the gradients."""
        sums = self._collective(group, "reduce", number, gradients)
        pushes, services, pulls = [], [], []
        for message in self._messages(group, bucket):
            push, service = self._push(group, number, message, sums or gradients)
            pushes.append(push)
            services.append(service)
            pulls.append(self._pull(group, number, message, [service]))
        self._wait(group.members, Phase.SYNCHRONISE, sums)
        self._wait(group.members[:1], Phase.SEND, pushes)
        self._wait_for_reply(group, _Reply(services, pulls, self._collective(group, "broadcast", number, pulls)))

    def _wait_for_reply(self, group: WorkerGroup, reply: _Reply) -> None:
        """Makes a group wait for a reply."""
        self._wait(group.members[:1], Phase.WAIT, reply.services)
        self._wait(group.members[:1], Phase.RECEIVE, reply.pulls)
        self._wait(group.members, Phase.SYNCHRONISE, reply.broadcast)

    def overlapped(self) -> Program:
        """Pushes overlap with the rest of the backward pass, pulls with it and the next forward pass. A step ends when its
        first layers can begin the next step; parameters of later layers are waited for where they are needed."""
        for worker in self._workers():
            self._builder.load(self._ranks[worker], worker.node, worker.each, worker.ranks)
        for group in self._groups:
            waits = self._forward(group)
            messages = [list(self._messages(group, bucket)) for bucket in self._buckets]
            pushes = self._backward(group, messages)
            replies = [self._reply(group, number, messages[number], pushes[number]) for number in range(len(pushes))]
            for rows, reply in zip(waits, replies[1:], strict=True):
                self._builder.carry(rows[0], reply.services)
                self._builder.carry(rows[1], reply.pulls)
                for row in rows[2:]:
                    self._builder.carry(row, reply.broadcast)
            self._wait(group.members[:1], Phase.SEND, [push for of_bucket in pushes for push, _ in of_bucket])
            self._wait_for_reply(group, replies[0])
        return self._builder.priced()

    def _reply(
        self, group: WorkerGroup, number: int, messages: Sequence[_Message], pushes: Sequence[tuple[int, int]]
    ) -> _Reply:
        """Pulls of a bucket. pushes: rows of the pushes and of their services."""
        services = [service for _, service in pushes]
        both = zip(messages, services, strict=True)
        pulls = [self._pull(group, number, message, [service]) for message, service in both]
        return _Reply(services, pulls, self._collective(group, "broadcast", number, pulls))

    def _forward(self, group: WorkerGroup) -> list[list[int]]:
        """Adds forward passes of a group, divided where another bucket is needed. Returns for each of these buckets the rows
        that wait for it: the leader's for the reply and for the pull, and each member's for the broadcast."""
        leader, listeners = self._ranks[group.members[0]], group.members if len(group.workers) > 1 else ()
        waiting = [
            (leader, Phase.WAIT),
            (leader, Phase.RECEIVE),
            *((self._ranks[worker], Phase.SYNCHRONISE) for worker in listeners),
        ]
        waits, begin = [], 0
        for end in [bucket.layer for bucket in self._buckets[1:]]:
            if not self._rollout_s:
                self._passes(group, Phase.FORWARD, begin, end)
                begin = end
            waits.append([self._builder.wait(rank, phase, []) for rank, phase in waiting])
        # samples are generated with all parameters
        for worker in group.members:
            self._make_samples(worker)
        self._passes(group, Phase.FORWARD, begin, len(self._job.layers))
        return waits

    def _backward(self, group: WorkerGroup, messages: Sequence[Sequence[_Message]]) -> list[list[tuple[int, int]]]:
        """Adds backward passes of a group, divided where a bucket is complete, which is then pushed. Returns the rows of pushes
        and services by bucket."""
        begin, gradients = len(self._job.layers), list[int]()
        pushes: list[list[tuple[int, int]]] = []
        # one after another to each server, as over one connection (ps-lite has one per pair): concurrent messages of a worker
        # would take bandwidth of the server's card from other workers in proportion to their number
        previous_push: dict[tuple[int, bool], list[int]] = {}
        for bucket, of_bucket in zip(reversed(self._buckets), reversed(messages), strict=True):
            number = len(self._buckets) - 1 - len(pushes)
            if bucket.layer < begin:
                gradients = self._passes(group, Phase.BACKWARD, bucket.layer, begin)
                begin = bucket.layer
            ready = self._collective(group, "reduce", number, gradients) or gradients
            pushes.append([])
            for message in of_bucket:
                connection = message.server, message.inside
                pushes[-1].append(self._push(group, number, message, [*ready, *previous_push.get(connection, [])]))
                previous_push[connection] = [pushes[-1][-1][0]]
        return pushes[::-1]

    def _workers(self) -> Iterator[RankClass]:
        return (worker for group in self._groups for worker in group.members)

    def _make_samples(self, worker: RankClass) -> None:
        if self._rollout_s:
            self._builder.compute(self._ranks[worker], Phase.INPUT, self._rollout_s)

    def _passes(self, group: WorkerGroup, phase: Phase, begin: int, end: int) -> list[int]:
        return [row for worker in group.members for row in self._pass(worker, phase, begin, end)]

    def _pass(self, worker: RankClass, phase: Phase, begin: int, end: int) -> list[int]:
        """Adds the pass over some layers; returns its row, or nothing if there are no layers."""
        if begin == end:
            return []

        def seconds(costs: JobCosts) -> float:
            layers = costs.layers()
            return float((layers.forward_s if phase == Phase.FORWARD else layers.backward_s)[begin:end].sum())

        return [self._builder.compute(self._ranks[worker], phase, seconds)]

    def _wait(self, members: Sequence[RankClass], phase: Phase, after: Sequence[int]) -> None:
        for worker in members if after else ():
            self._builder.wait(self._ranks[worker], phase, after)

    def _messages(self, group: WorkerGroup, bucket: Bucket) -> Iterator[_Message]:
        """Messages with each class of servers, across the network and inside a node."""
        worker = group.leader
        for server in self._servers:
            shard = server.rank - self._first_server
            size_bytes = float(bucket.sent_bytes[shard])
            if size_bytes == 0:
                continue
            service = self._service(bucket, shard)
            shares_node = worker.node == server.node
            servers, workers = (
                server.each * (server.nodes - shares_node),
                worker.each * (worker.nodes - shares_node),
            )
            if servers and workers:
                counts = worker.each * servers, server.each * workers
                # a server belongs to no device: its messages use all cards
                up = partial(between, worker.node, server.node, size_bytes, counts)
                down = partial(between, server.node, worker.node, size_bytes, counts[::-1])
                yield _Message(self._ranks[server], False, servers, workers, size_bytes, up, down, *service)
            if shares_node:
                ends, pairs = (worker, server), worker.each * server.each
                up = partial(_inside, ends, size_bytes, (server.each, worker.each, pairs))
                down = partial(_inside, ends[::-1], size_bytes, (worker.each, server.each, pairs))
                yield _Message(self._ranks[server], True, server.each, worker.each, size_bytes, up, down, *service)

    def _service(self, bucket: Bucket, server: int) -> tuple[SecondsOf, SecondsOf]:
        """Seconds of handling a push, and of the update of a step; asynchronous servers update for each push, and have no
        update per step."""
        one, all_ = (float(touched[server]) for touched in (bucket.touched, bucket.touched_by_all))
        if not self._sums_pushes:
            return partial(update_s, one), 0.0
        return partial(sum_s, float(bucket.gradient_bytes[server])), partial(update_s, all_)

    def _push(self, group: WorkerGroup, number: int, message: _Message, after: Sequence[int]) -> tuple[int, int]:
        """Adds a push; returns its row and that of its service."""
        worker, concurrent_set = self._ranks[group.members[0]], 2 * number + _PUSHES
        sizes = message.size_bytes, message.up
        labels = self._labels(number, Collective.PUSH, message.size_bytes, message.servers)
        push = self._builder.transfer(worker, message.server, *sizes, Phase.SEND, after, together=concurrent_set, labels=labels)
        served = message.requests, message.service_s, message.update_s
        return push, self._builder.serve(message.server, worker, Phase.OPTIMIZER, *served, (push,), number)

    def _pull(self, group: WorkerGroup, number: int, message: _Message, after: Sequence[int]) -> int:
        worker, concurrent_set = self._ranks[group.members[0]], 2 * number + _PULLS
        sizes = message.size_bytes, message.down
        labels = self._labels(number, Collective.PULL, message.size_bytes, message.servers)
        return self._builder.transfer(
            message.server, worker, *sizes, Phase.RECEIVE, after, together=concurrent_set, labels=labels
        )

    def _labels(self, number: int, op: Collective | Op, size_bytes: float, calls: int = 1) -> Communication:
        """Labels of a message or collective of a bucket."""
        return Communication.of(Dimension.SERVER, op, size_bytes, self._layers(number), calls)

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


def between(source: int, target: int, size_bytes: float, counts: tuple[float, float], links: ResourceMap) -> Path:
    """Path between two nodes. counts: equivalent messages that leave the source, and that reach the target."""
    return links.between(source, target, size_bytes, *counts)


def _inside(ends: tuple[RankClass, RankClass], size_bytes: float, counts: tuple[int, int, int], links: ResourceMap) -> Path:
    """Path between two ranks of a node. counts: equivalent messages that leave the first, that reach the second, and in all."""
    source, target = ends
    return links.inside(source.node, source.name, target.name, size_bytes, *counts, (source.device, target.device))


def sum_s(size_bytes: float, costs: JobCosts) -> Any:
    """Seconds in which a server adds a pushed gradient."""
    return costs.job.cluster.sum_s(size_bytes)


def update_s(parameters: float, costs: JobCosts) -> Any:
    """Seconds in which a server updates parameters."""
    return costs.job.cluster.update_s(parameters, costs.job.optimizer, costs.job.precision)
