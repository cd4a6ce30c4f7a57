"""One step of parameter servers as a Program: passes, pushes, services and pulls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.program.consistency import Bsp, Gate, WorkQuota
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.loading_tasks import Feeding
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.parameter_server.ranks import Crew, RankClass
from scaleproof.simulator.strategy.parameter_server.shards import Bucket

# what runs at the same time by construction, for each bucket: all workers push together, all servers answer together
_PUSHES: Final = 0
_PULLS: Final = 1


class _Message(NamedTuple):
    """What a crew and a class of servers send one another for a bucket, inside nodes or between them; requests: that each of
    the servers gets."""

    server: int
    inside: bool
    requests: int
    size_bytes: float
    up: Path
    down: Path
    service_s: float
    update_s: float


class _Answer(NamedTuple):
    """Rows of what brings a bucket from the servers to a crew: services, pulls, and its own broadcast."""

    services: list[int]
    pulls: list[int]
    spread: list[int]


class ServedStep:
    """Builds the program of one step."""

    def __init__(
        self, job: Job, gate: Gate, units: WorkQuota | None, alike: Sequence[RankClass], crews: Sequence[Crew],
        buckets: Sequence[Bucket], rollout_s: float,
    ) -> None:  # fmt: skip
        """rollout_s: in which a worker makes its samples."""
        self._builder = ProgramBuilder(gate, units)
        self._fabric = ResourceMap(job.cluster, self._builder)
        self._feeding = Feeding(self._builder, job)
        self._job, self._costs, self._rollout_s = job, job.costs(), rollout_s
        self._sums_pushes = isinstance(gate, Bsp)
        self._crews, self._buckets = crews, buckets
        self._servers = [one for one in alike if one.is_server]
        self._first_server = min(one.rank for one in self._servers)
        self._ranks = {
            one: self._fabric.add_rank(one.name, job.unevenness, one.rank, one.node, one.each, one.ranks, one.is_server)
            for one in alike
        }

    def one_after_the_other(self) -> Program:
        """Each worker's passes, then a push to every server, the wait for the servers' answer, and the pull."""
        backward: dict[RankClass, list[int]] = {}
        for here in self._workers():
            self._feeding.add(self._ranks[here], here.node, here.each, here.ranks)
            self._make_samples(here)
            self._pass(here, Phase.FORWARD, 0, len(self._job.layers))
            backward[here] = self._pass(here, Phase.BACKWARD, 0, len(self._job.layers))
        for crew in self._crews:
            made = [row for here in crew.members for row in backward[here]]
            for number, bucket in enumerate(self._buckets):
                self._exchange(crew, number, bucket, made)
        return self._builder.build()

    def _exchange(self, crew: Crew, number: int, bucket: Bucket, made: Sequence[int]) -> None:
        """A crew's gradients to the servers, and parameters back, all of which it waits for; made: what makes the gradients."""
        sums = self._collective(crew, "reduce", bucket, made)
        pushes, services, pulls = [], [], []
        for message in self._messages(crew, bucket):
            push, service = self._push(crew, number, message, sums or made)
            pushes.append(push)
            services.append(service)
            pulls.append(self._pull(crew, number, message, [service]))
        self._wait(crew.members, Phase.SYNCHRONISE, sums)
        self._wait(crew.members[:1], Phase.SEND, pushes)
        self._hear(crew, _Answer(services, pulls, self._collective(crew, "broadcast", bucket, pulls)))

    def _hear(self, crew: Crew, answer: _Answer) -> None:
        """Makes a crew wait for an answer."""
        self._wait(crew.members[:1], Phase.WAIT, answer.services)
        self._wait(crew.members[:1], Phase.RECEIVE, answer.pulls)
        self._wait(crew.members, Phase.SYNCHRONISE, answer.spread)

    def overlapped(self) -> Program:
        """Pushes beside the backward pass that goes on, pulls beside it and the next forward pass: a step ends when its first
        layers may begin the next one, and what later layers need is waited for there."""
        for here in self._workers():
            self._feeding.add(self._ranks[here], here.node, here.each, here.ranks)
        for crew in self._crews:
            waits = self._forward(crew)
            messages = [list(self._messages(crew, bucket)) for bucket in self._buckets]
            sent = self._backward(crew, messages)
            answers = [self._answered(crew, number, messages[number], sent[number]) for number in range(len(sent))]
            for rows, answer in zip(waits, answers[1:], strict=True):
                self._builder.carry(rows[0], answer.services)
                self._builder.carry(rows[1], answer.pulls)
                for row in rows[2:]:
                    self._builder.carry(row, answer.spread)
            self._wait(crew.members[:1], Phase.SEND, [push for of_bucket in sent for push, _ in of_bucket])
            self._hear(crew, answers[0])
        return self._builder.build()

    def _answered(self, crew: Crew, number: int, messages: Sequence[_Message], sent: Sequence[tuple[int, int]]) -> _Answer:
        """Pulls of a bucket; sent: rows of the pushes and of their services."""
        services = [service for _, service in sent]
        both = zip(messages, services, strict=True)
        pulls = [self._pull(crew, number, message, [service]) for message, service in both]
        return _Answer(services, pulls, self._collective(crew, "broadcast", self._buckets[number], pulls))

    def _forward(self, crew: Crew) -> list[list[int]]:
        """Forward passes of a crew, in pieces where a further bucket is needed; returns for each of those the rows that wait
        for it: the leader's for the answer and for the pull, and of each member for what is spread."""
        leader, listens = self._ranks[crew.members[0]], crew.members if len(crew.workers) > 1 else ()
        who = [(leader, Phase.WAIT), (leader, Phase.RECEIVE), *((self._ranks[here], Phase.SYNCHRONISE) for here in listens)]
        waits, begin = [], 0
        for end in [bucket.layer for bucket in self._buckets[1:]]:
            if not self._rollout_s:
                self._passes(crew, Phase.FORWARD, begin, end)
                begin = end
            waits.append([self._builder.wait(rank, phase, []) for rank, phase in who])
        # samples are made with all parameters
        for here in crew.members:
            self._make_samples(here)
        self._passes(crew, Phase.FORWARD, begin, len(self._job.layers))
        return waits

    def _backward(self, crew: Crew, messages: Sequence[Sequence[_Message]]) -> list[list[tuple[int, int]]]:
        """Backward passes of a crew, cut where a bucket is complete, which is then pushed; rows of pushes and services by
        bucket."""
        begin, made = len(self._job.layers), list[int]()
        sent: list[list[tuple[int, int]]] = []
        # one after another to each server, as over one connection (ps-lite has one for each pair): side by side a worker's
        # messages would take the more of the server's card from those of others the more of them it still has to send
        earlier: dict[tuple[int, bool], list[int]] = {}
        for bucket, of_bucket in zip(reversed(self._buckets), reversed(messages), strict=True):
            number = len(self._buckets) - 1 - len(sent)
            if bucket.layer < begin:
                made = self._passes(crew, Phase.BACKWARD, bucket.layer, begin)
                begin = bucket.layer
            ready = self._collective(crew, "reduce", bucket, made) or made
            sent.append([])
            for message in of_bucket:
                connection = message.server, message.inside
                sent[-1].append(self._push(crew, number, message, [*ready, *earlier.get(connection, [])]))
                earlier[connection] = [sent[-1][-1][0]]
        return sent[::-1]

    def _workers(self) -> Iterator[RankClass]:
        return (here for crew in self._crews for here in crew.members)

    def _make_samples(self, here: RankClass) -> None:
        if self._rollout_s:
            self._builder.compute(self._ranks[here], Phase.INPUT, self._rollout_s)

    def _passes(self, crew: Crew, phase: Phase, begin: int, end: int) -> list[int]:
        return [row for here in crew.members for row in self._pass(here, phase, begin, end)]

    def _pass(self, here: RankClass, phase: Phase, begin: int, end: int) -> list[int]:
        """The pass through some layers; its row, none where there are none."""
        layers_s = self._costs.forward_s if phase == Phase.FORWARD else self._costs.backward_s
        return [self._builder.compute(self._ranks[here], phase, layers_s[begin:end].sum())] if begin < end else []

    def _wait(self, members: Sequence[RankClass], phase: Phase, after: Sequence[int]) -> None:
        for here in members if after else ():
            self._builder.wait(self._ranks[here], phase, after)

    def _messages(self, crew: Crew, bucket: Bucket) -> Iterator[_Message]:
        """With each class of servers: those that cross the network, and those that stay in a node."""
        here = crew.leader
        for there in self._servers:
            shard = there.rank - self._first_server
            size_bytes = float(bucket.sent_bytes[shard])
            if size_bytes == 0:
                continue
            service = self._service(bucket, shard)
            same = here.node == there.node
            servers, workers = there.each * (there.nodes - same), here.each * (here.nodes - same)
            if servers and workers:
                out, into = here.each * servers, there.each * workers
                # a server is no device's: messages are spread over all cards
                up = self._fabric.between(here.node, there.node, size_bytes, out, into)
                down = self._fabric.between(there.node, here.node, size_bytes, into, out)
                yield _Message(self._ranks[there], False, workers, size_bytes, up, down, *service)
            if same:
                pairs, names, devices = here.each * there.each, (here.name, there.name), (here.device, there.device)
                up = self._fabric.inside(here.node, *names, size_bytes, there.each, here.each, pairs, devices)
                down = self._fabric.inside(here.node, *names[::-1], size_bytes, here.each, there.each, pairs, devices[::-1])
                yield _Message(self._ranks[there], True, here.each, size_bytes, up, down, *service)

    def _service(self, bucket: Bucket, server: int) -> tuple[float, float]:
        """Seconds that a push takes, and the update for all of a step: an update for each where none waits for the others."""
        job = self._job
        one, all_of_them = (
            job.cluster.update_s(float(touched[server]), job.optimizer, job.precision)
            for touched in (bucket.touched, bucket.touched_by_all)
        )
        return (job.cluster.sum_s(float(bucket.gradient_bytes[server])), all_of_them) if self._sums_pushes else (one, 0.0)

    def _push(self, crew: Crew, number: int, message: _Message, after: Sequence[int]) -> tuple[int, int]:
        """Rows of a push and of its service."""
        worker, together = self._ranks[crew.members[0]], 2 * number + _PUSHES
        sizes = message.size_bytes, message.up
        push = self._builder.transfer(worker, message.server, *sizes, Phase.SEND, after, together=together)
        served = message.requests, message.service_s, message.update_s
        return push, self._builder.serve(message.server, worker, Phase.OPTIMIZER, *served, (push,), number)

    def _pull(self, crew: Crew, number: int, message: _Message, after: Sequence[int]) -> int:
        worker, together = self._ranks[crew.members[0]], 2 * number + _PULLS
        sizes = message.size_bytes, message.down
        return self._builder.transfer(message.server, worker, *sizes, Phase.RECEIVE, after, together=together)

    def _collective(self, crew: Crew, op: Op, bucket: Bucket, after: Sequence[int]) -> list[int]:
        """Over the bucket's gradients, or parameters, of a crew; none where it is one worker, or several that go alone."""
        if len(crew.workers) < 2:
            return []
        group = Group.of(list(crew.workers), self._job.cluster.node.devices)
        moved_bytes, path = self._fabric.collective(op, group, bucket.all_bytes, [crew.leader.node])
        members = [self._ranks[here] for here in crew.members]
        return [self._builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, after)]
