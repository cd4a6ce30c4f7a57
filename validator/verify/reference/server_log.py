"""The rule of asynchronous servers: the log of each server, replayed in one process.

A server's log records whose gradients it added, when it updated its parameters, and to whom it replied with them. A worker's
gradient is that of its own samples at the parameters of the last replies, part by part. Everything else follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from scaleproof.simulator.common.parameter_server import Bsp, Ssp
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import quota_of, steps_of_worker, warmup_steps
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.verify.reference.single_process import SingleProcess

# Part of a tensor: its number, first element and end.
_Range = tuple[int, int, int]


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The servers' final parameters. notes: of servers, `ranges` and `log` as `AsynchronousServer.notes` returns them.

    Raises ValueError where a log breaks the rules of the scenario's consistency model.
    """
    strategy = cast(ParameterServer, scenario.strategy)
    process = SingleProcess.of(scenario)
    groups = strategy.pushers(scenario.cluster.node.devices)
    server_notes = notes[strategy.workers :]
    _check_ranges([tuple(part) for note in server_notes for ranges in note["ranges"].values() for part in ranges], process)
    pushers = [_PusherReplay(process, workers, sum(len(note["ranges"]) for note in server_notes)) for workers in groups]
    servers = [_ServerReplay(process, number, note, pushers) for number, note in enumerate(server_notes)]
    while sum(server.advance() for server in servers):
        pass
    for server in servers:
        server.check_finished()
    parameters = process.distinct_parameters()
    for server in servers:
        for number, begin, end, value in server.values():
            parameters[number].view(-1)[begin:end] = value.detach()
    return process.parameters()


def _check_ranges(ranges: Iterable[tuple[int, ...]], process: SingleProcess) -> None:
    """Raises ValueError unless every element is on exactly one server."""
    by_tensor: dict[int, list[tuple[int, int]]] = {}
    for number, begin, end in ranges:
        by_tensor.setdefault(number, []).append((begin, end))
    for number, value in enumerate(process.distinct_parameters()):
        parts = [(0, 0), *sorted(by_tensor.get(number, [])), (value.numel(), value.numel())]
        if any(before[1] != after[0] for before, after in pairwise(parts)):
            raise ValueError(f"servers have parts {parts[1:-1]} of tensor {number}, which has {value.numel()} elements")


class _PusherReplay:
    """Workers that push together, and the parameters that servers replied to them. parts: number of replies in a step."""

    def __init__(self, process: SingleProcess, workers: Sequence[int], parts: int) -> None:
        scenario, self._process = process.scenario, process
        self.size = len(workers)
        self._batches = [
            worker_batches(scenario, worker, process.steps, torch.device("cpu"), process.dtype) for worker in workers
        ]
        self._values = [value.clone() for value in process.distinct_parameters()]
        self._parts, self._replies = parts, 0
        self._step = -1
        self._gradients: list[Tensor] = []

    def gradients(self, step: int) -> list[Tensor] | None:
        """The flat gradient of each tensor, summed over workers; None until all servers have replied to the previous step."""
        if step == self._step + 1 and self._replies == step * self._parts:
            self._step = step
            parameters = list(self._process.module.parameters())
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data.copy_(value)
                parameter.grad = None
            for batches in self._batches:
                batch = batches[step]
                self._process.loss(batch).backward()  # type: ignore[no-untyped-call]
            self._gradients = [cast(Tensor, parameter.grad).to_dense().flatten() for parameter in parameters]
        return self._gradients if step == self._step else None

    def receive(self, ranges: Iterable[_Range], values: Iterable[Tensor]) -> None:
        """Copies a server's part of a bucket into the parameters."""
        self._replies += 1
        for (number, begin, end), value in zip(ranges, values, strict=True):
            self._values[number].view(-1)[begin:end] = value.detach()


class _BucketReplay:
    """A server's part of a bucket."""

    def __init__(self, process: SingleProcess, ranges: Sequence[_Range], pushers: int) -> None:
        initial = process.distinct_parameters()
        self.ranges = ranges
        self.values = [nn.Parameter(initial[number].flatten()[begin:end].clone()) for number, begin, end in ranges]
        self.optimizer = process.model.optimizer(self.values)
        # by pusher: number of pushes, of replies, and of updates before the last reply
        self.pushed, self.replied, self.version = [0] * pushers, [0] * pushers, [0] * pushers
        self.updates = 0
        # pushers whose pushes the next update applies
        self.added: list[int] = []


class _ServerReplay:
    """Replays one server's log."""

    def __init__(self, process: SingleProcess, number: int, note: Mapping[str, Any], pushers: Sequence[_PusherReplay]) -> None:
        self._name, self._pushers = f"server {number}", pushers
        self._consistency = cast(ParameterServer, process.scenario.strategy).consistency
        self._steps = len(process.steps)
        self._scenario = process.scenario
        self._max_pushes = len(pushers) - self._consistency.backups if isinstance(self._consistency, Bsp) else 1
        self._log: Sequence[tuple[str, int, int]] = note["log"]
        self._done = 0
        # number of pushes by bucket and pusher
        self._pushes = Counter((bucket, pusher) for action, bucket, pusher in self._log if action in ("add", "drop"))
        self._buckets = {
            int(bucket): _BucketReplay(process, [(tensor, begin, end) for tensor, begin, end in ranges], len(pushers))
            for bucket, ranges in note["ranges"].items()
        }

    def advance(self) -> int:
        """Replays the log until a gradient is needed that is not known yet; returns the number of entries replayed."""
        before = self._done
        while self._done < len(self._log) and self._follow(*self._log[self._done]):
            self._done += 1
        return self._done - before

    def check_finished(self) -> None:
        """Raises ValueError where entries of the log could not be replayed, or pushes are missing."""
        if self._done < len(self._log):
            raise ValueError(f"{self._name} logged {self._log[self._done]}, though the worker had no reply to its last push")
        for bucket in self._buckets.values():
            if bucket.pushed != bucket.replied or not self._is_complete(bucket.pushed):
                raise ValueError(f"{self._name} has served workers {bucket.replied} times, not as often as the scenario says")
        if any(bucket.added for bucket in self._buckets.values()):
            raise ValueError(f"{self._name} added pushes that no update applied")

    def _is_complete(self, pushed: Sequence[int]) -> bool:
        """Whether the numbers of the workers' pushes are those of the scenario."""
        quota = quota_of(self._scenario)
        if quota is not None and quota.shared:
            return sum(pushed) == quota.count + warmup_steps(self._scenario) * len(pushed)
        return all(count == steps_of_worker(self._scenario, worker) for worker, count in enumerate(pushed))

    def values(self) -> Iterable[tuple[int, int, int, Tensor]]:
        for bucket in self._buckets.values():
            for part, value in zip(bucket.ranges, bucket.values, strict=True):
                yield *part, value.detach()

    def _follow(self, action: str, number: int, pusher: int) -> bool:
        bucket = self._buckets[number]
        match action:
            case "add":
                return self._push(bucket, pusher, counts=True)
            case "drop":
                self._check_late(bucket, pusher)
                return self._push(bucket, pusher, counts=False)
            case "update" | "skip":
                self._check_round(bucket)
                workers = sum(self._pushers[one].size for one in bucket.added)
                for value in bucket.values:
                    assert value.grad is not None, "an update follows a push"
                    value.grad /= workers
                # gradients that were not finite are not applied
                if action == "update":
                    bucket.optimizer.step()
                bucket.optimizer.zero_grad()
                bucket.added.clear()
                bucket.updates += 1
            case _:
                self._check_bound(number, pusher)
                bucket.replied[pusher] += 1
                bucket.version[pusher] = bucket.updates
                self._pushers[pusher].receive(bucket.ranges, bucket.values)
        return True

    def _push(self, bucket: _BucketReplay, pusher: int, counts: bool) -> bool:
        """Takes a pusher's next gradient and adds it if it counts; False if the gradient is not known yet."""
        gradients = self._pushers[pusher].gradients(bucket.pushed[pusher])
        if gradients is None:
            return False
        bucket.pushed[pusher] += 1
        if counts:
            bucket.added.append(pusher)
            for value, (number, begin, end) in zip(bucket.values, bucket.ranges, strict=True):
                part = gradients[number][begin:end]
                value.grad = part.clone() if value.grad is None else value.grad + part
        return True

    def _check_round(self, bucket: _BucketReplay) -> None:
        """Raises ValueError where an update applies too few or too many pushes: a round's until a pusher is done, else one."""
        needed = 1
        if isinstance(self._consistency, Bsp) and max(bucket.replied) < self._steps:
            needed = len(self._pushers) - self._consistency.backups
        if len(bucket.added) < needed or len(set(bucket.added)) < len(bucket.added) or len(bucket.added) > self._max_pushes:
            raise ValueError(f"{self._name} updated with the pushes of {bucket.added}, but an update takes {needed}")

    def _check_late(self, bucket: _BucketReplay, pusher: int) -> None:
        """Raises ValueError where a dropped push came before its round's update, or there are no backups."""
        late = bucket.updates > bucket.version[pusher]
        if not (isinstance(self._consistency, Bsp) and self._consistency.backups and late):
            raise ValueError(f"{self._name} dropped a push of worker {pusher} that was not late")

    def _check_bound(self, number: int, pusher: int) -> None:
        """Raises ValueError where a reply lets a worker run ahead, by more than the bound, of one that has pushes to make."""
        if isinstance(self._consistency, Ssp):
            pushed = self._buckets[number].pushed
            active = [count for other, count in enumerate(pushed) if count < self._pushes[number, other]]
            ahead, bound = pushed[pusher] - min(active, default=pushed[pusher]), self._consistency.bound
            if ahead > bound:
                raise ValueError(f"{self._name} replied to worker {pusher} {ahead} steps ahead; the bound is {bound}")
