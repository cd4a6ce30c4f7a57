"""Faults of parameter servers and workers, which verification must detect; imported by the ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.parameter_server import trainer, worker
from scaleproof.validator.strategy.parameter_server.bucket_shard import BucketShard
from scaleproof.validator.strategy.parameter_server.consistency import ClockReplies, RoundReplies
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.node_worker import NodeWorker
from scaleproof.validator.strategy.parameter_server.server import AsynchronousServer
from scaleproof.validator.strategy.parameter_server.worker import Worker
from scaleproof.validator.train.trained_model import TrainedModel
from tests.validator import processes

Outcome = Mapping[str, Any]
# Work of other ranks meanwhile takes a few milliseconds, more on a loaded machine.
_SLOW_S = 0.08


def slow_worker(scenario: Scenario, folder: Path | None) -> Outcome:
    """Nothing is wrong, but worker 0 is slower than the others."""
    _slow_down()
    return train_here(scenario, folder)


def own_groups(scenario: Scenario, folder: Path | None) -> Outcome:
    """Nothing is wrong: messages take a group for each way between two ranks, as on NCCL."""

    def links(leaders: Iterable[int], servers: Iterable[int], own: bool) -> Links:
        return Links(leaders, servers, own=True)

    trainer.Links = links  # type: ignore[assignment,misc]
    return train_here(scenario, folder)


def push_twice(scenario: Scenario, folder: Path | None) -> Outcome:
    """The first server applies one push twice."""
    update = AsynchronousServer._update

    def twice(self: AsynchronousServer, number: int, order: Any) -> None:
        if self.number == 0 and self.parts[number].version == 3:
            part = self.parts[number]
            assert part._sum is not None
            with torch.no_grad():
                part.value -= self.context.scenario.training.learning_rate * part._sum / part._workers
        update(self, number, order)

    AsynchronousServer._update = twice  # type: ignore[method-assign]
    return train_here(scenario, folder)


def count_dropped(scenario: Scenario, folder: Path | None) -> Outcome:
    """A push logged as dropped is added to the round that is open."""
    _slow_down()
    note = AsynchronousServer._note

    def noted(self: AsynchronousServer, action: str, number: int, pusher: int) -> None:
        note(self, action, number, pusher)
        if action == "drop":
            self.parts[number].add(self.listeners[pusher].buffers[number].clone(), 1)

    AsynchronousServer._note = noted  # type: ignore[method-assign]
    return train_here(scenario, folder)


def take_everybody(scenario: Scenario, folder: Path | None) -> Outcome:
    """A round waits for all pushes, backups or not."""
    init = RoundReplies.__init__

    def patient(self: RoundReplies, pushes: Mapping[int, int], backups: int) -> None:
        init(self, pushes, 0)

    RoundReplies.__init__ = patient  # type: ignore[method-assign]
    return train_here(scenario, folder)


def keep_old_shard(scenario: Scenario, folder: Path | None) -> Outcome:
    """Worker 1 goes on with a server's old part after its third pull."""
    pull, finish = Worker.pull, worker.wait_all
    kept: list[tuple[Tensor, Tensor]] = []

    def pulled(self: Worker, bucket: int) -> list[dist.Work]:
        if here().rank == 1 and self._index == 2:
            part = self.values[self.layout.buckets[bucket].parts[0]]
            kept.append((part, part.clone()))
        return pull(self, bucket)

    def finished(messages: Iterable[dist.Work]) -> None:
        finish(messages)
        while kept:
            part, old = kept.pop()
            part.copy_(old)

    Worker.pull = pulled  # type: ignore[method-assign]
    worker.wait_all = finished
    return train_here(scenario, folder)


def reply_at_once(scenario: Scenario, folder: Path | None) -> Outcome:
    """Servers of a clock do not look at it, and worker 0 is slow."""
    _slow_down()
    init = ClockReplies.__init__

    def hasty(self: ClockReplies, pushes: Mapping[int, int], bound: float) -> None:
        init(self, pushes, float("inf"))

    ClockReplies.__init__ = hasty  # type: ignore[method-assign]
    return train_here(scenario, folder)


def forget_a_push(scenario: Scenario, folder: Path | None) -> Outcome:
    """Servers in step leave out the push of the last pusher."""
    add = BucketShard.add
    seen: list[int] = []

    def forgetful(self: BucketShard, gradient: Tensor, workers: int) -> None:
        seen.append(1)
        add(self, gradient.zero_() if len(seen) % scenario.strategy.workers == 0 else gradient, workers)

    BucketShard.add = forgetful  # type: ignore[method-assign]
    return train_here(scenario, folder)


def push_infinity(scenario: Scenario, folder: Path | None) -> Outcome:
    """Nothing is wrong, but a gradient of worker 1 exceeds the range of fp16 in each part of its fourth push."""
    return _push_infinity(scenario, folder, range(scenario.strategy.ranks))


def push_infinity_to_one_server(scenario: Scenario, folder: Path | None) -> Outcome:
    """Nothing is wrong, but a gradient of worker 1 exceeds the range of fp16 in one server's part of its fourth push."""
    return _push_infinity(scenario, folder, range(scenario.strategy.workers, scenario.strategy.workers + 1))


def _push_infinity(scenario: Scenario, folder: Path | None, servers: range) -> Outcome:
    push = Worker._push

    def overflowing(self: Worker, bucket: int, server: int, part: slice) -> Tensor:
        message = push(self, bucket, server, part)
        if here().rank == 1 and self._index == 3 and server in servers:
            message[0] = float("inf")
        return message

    Worker._push = overflowing  # type: ignore[method-assign]
    return train_here(scenario, folder)


def skip_node_reduction(scenario: Scenario, folder: Path | None) -> Outcome:
    """Gradients are not summed in the node."""
    in_node = Worker._in_node

    def alone(self: Worker, collective: Any, tensor: Tensor) -> None:
        if collective is not dist.reduce:
            in_node(self, collective, tensor)

    collect = NodeWorker._collect

    def alone_with(self: NodeWorker, collectives: Collectives, collective: Any, tensor: Tensor) -> None:
        if collective is not dist.reduce:
            collect(self, collectives, collective, tensor)

    Worker._in_node = alone  # type: ignore[method-assign]
    NodeWorker._collect = alone_with  # type: ignore[method-assign]
    return train_here(scenario, folder)


def die_in_step_6(scenario: Scenario, folder: Path | None) -> Outcome:
    """Worker 1 is killed in its forward pass, once all others have come to step 3."""
    loss, me = TrainedModel.loss, here()

    def others_are_there() -> bool:
        return all(me.status._board.read(rank).step >= 3 for rank in range(me.ranks))

    def deadly(self: TrainedModel, outputs: Tensor, targets: Tensor) -> Tensor:
        if me.rank == 1 and me.status.activity.step == 6:
            processes.wait_until(others_are_there)
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(self, outputs, targets)

    TrainedModel.loss = deadly  # type: ignore[method-assign,assignment]
    return train_here(scenario, folder)


def _slow_down() -> None:
    """Makes worker 0 slower than the others."""
    loss = TrainedModel.loss

    def late(self: TrainedModel, outputs: Tensor, targets: Tensor) -> Tensor:
        if here().rank == 0:
            time.sleep(_SLOW_S)
        return loss(self, outputs, targets)

    TrainedModel.loss = late  # type: ignore[method-assign,assignment]
