"""The rule of servers that do not wait for all: what each server noted, replayed in one process.

A server's log tells whose gradient it added, when it updated its parameters, and whom it answered with them. A worker's
gradient is that of its own samples at the parameters which it was answered last, part by part. Everything else follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from scaleproof.simulator.program.consistency import Bsp, Ssp
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.strategy.base import build_optimizer
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.train.models import models
from scaleproof.validator.verify.reference.single_process import SingleProcess

# Of a tensor: its number, and from which element to which.
_Range = tuple[int, int, int]


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """What the servers have in the end. notes: of servers `held` and `log`, as parameter_server_server.Free has them. Raises
    ValueError where logs cannot be what servers did that keep to the scenario."""
    strategy = cast(ParameterServer, scenario.strategy)
    process = SingleProcess.of(scenario)
    size = scenario.cluster.node.devices if strategy.two_level else 1
    groups = [range(first, min(first + size, strategy.workers)) for first in range(0, strategy.workers, size)]
    told = notes[strategy.workers :]
    _check_held([tuple(one) for server in told for held in server["held"].values() for one in held], process)
    crews = [_Crew(process, workers, sum(len(server["held"]) for server in told)) for workers in groups]
    servers = [_ServerReplay(process, number, server, crews) for number, server in enumerate(told)]
    while sum(server.go_on() for server in servers):
        pass
    for server in servers:
        server.check_finished(len(process.steps))
    names = list(process.parameters())
    result = {name: value.clone() for name, value in process.parameters().items()}
    for server in servers:
        for number, begin, end, value in server.values():
            result[names[number]].view(-1)[begin:end] = value
    return result


def _check_held(ranges: Iterable[tuple[int, ...]], process: SingleProcess) -> None:
    """Every element is held by one server."""
    by_tensor: dict[int, list[tuple[int, int]]] = {}
    for number, begin, end in ranges:
        by_tensor.setdefault(number, []).append((begin, end))
    for number, value in enumerate(process.parameters().values()):
        parts = [(0, 0), *sorted(by_tensor.get(number, [])), (value.numel(), value.numel())]
        if any(before[1] != after[0] for before, after in pairwise(parts)):
            raise ValueError(f"servers hold {parts[1:-1]} of tensor {number}, which has {value.numel()} elements")


class _Crew:
    """Workers that push as one, with the parameters that they were answered. parts: how many answers make a step's."""

    def __init__(self, process: SingleProcess, workers: Sequence[int], parts: int) -> None:
        scenario, self._process = process.scenario, process
        self.size = len(workers)
        self._batches = [
            worker_batches(scenario, worker, process.steps, torch.device("cpu"), process.dtype) for worker in workers
        ]
        self._values = [value.clone() for value in process.parameters().values()]
        self._parts, self._answers = parts, 0
        self._step = -1
        self._gradients: list[Tensor] = []

    def gradients(self, step: int) -> list[Tensor] | None:
        """Of each tensor, flat, the sum over its workers; None until all servers have answered the step before."""
        if step == self._step + 1 and self._answers == step * self._parts:
            self._step = step
            parameters = list(self._process.module.parameters())
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data.copy_(value)
                parameter.grad = None
            for batches in self._batches:
                batch = batches[step]
                models.loss(self._process.module(batch.inputs), batch.targets).backward()  # type: ignore[no-untyped-call]
            self._gradients = [cast(Tensor, parameter.grad).flatten() for parameter in parameters]
        return self._gradients if step == self._step else None

    def answer(self, ranges: Iterable[_Range], values: Iterable[Tensor]) -> None:
        """Takes a server's part of a bucket."""
        self._answers += 1
        for (number, begin, end), value in zip(ranges, values, strict=True):
            self._values[number].view(-1)[begin:end] = value.detach()


class _Held:
    """A server's part of a bucket."""

    def __init__(self, process: SingleProcess, ranges: Sequence[_Range], crews: int) -> None:
        training, initial = process.scenario.training, list(process.parameters().values())
        self.ranges = ranges
        self.values = [nn.Parameter(initial[number].flatten()[begin:end].clone()) for number, begin, end in ranges]
        self.optimizer = build_optimizer(training.optimizer, self.values, training.learning_rate)
        # by crew how often it pushed, how often it was answered, and after how many updates the last time
        self.pushed, self.answered, self.known = [0] * crews, [0] * crews, [0] * crews
        self.updates = 0
        # whose pushes make the next one
        self.counted: list[int] = []


class _ServerReplay:
    """Follows one server's log."""

    def __init__(self, process: SingleProcess, number: int, told: Mapping[str, Any], crews: Sequence[_Crew]) -> None:
        self._name, self._crews = f"server {number}", crews
        self._gate = cast(ParameterServer, process.scenario.strategy).gate
        self._steps = len(process.steps)
        self._most = len(crews) - self._gate.backups if isinstance(self._gate, Bsp) else 1
        self._log: Sequence[tuple[str, int, int]] = told["log"]
        self._done = 0
        self._held = {
            int(bucket): _Held(process, [(one[0], one[1], one[2]) for one in ranges], len(crews))
            for bucket, ranges in told["held"].items()
        }

    def go_on(self) -> int:
        """Follows the log until a gradient is needed that is not there yet; returns how far it got."""
        before = self._done
        while self._done < len(self._log) and self._follow(*self._log[self._done]):
            self._done += 1
        return self._done - before

    def check_finished(self, steps: int) -> None:
        if self._done < len(self._log):
            raise ValueError(f"{self._name} noted {self._log[self._done]}, for which a worker was not answered before")
        if any(count != steps for held in self._held.values() for count in (*held.pushed, *held.answered)):
            raise ValueError(f"{self._name} has not served every worker {steps} times")
        if any(held.counted for held in self._held.values()):
            raise ValueError(f"{self._name} added pushes that no update applied")

    def values(self) -> Iterable[tuple[int, int, int, Tensor]]:
        for held in self._held.values():
            for one, value in zip(held.ranges, held.values, strict=True):
                yield *one, value.detach()

    def _follow(self, what: str, bucket: int, crew: int) -> bool:
        held = self._held[bucket]
        match what:
            case "add":
                return self._push(held, crew, counts=True)
            case "drop":
                self._check_late(held, crew)
                return self._push(held, crew, counts=False)
            case "update":
                self._check_round(held)
                workers = sum(self._crews[one].size for one in held.counted)
                for value in held.values:
                    assert value.grad is not None, "an update follows a push"
                    value.grad /= workers
                held.optimizer.step()
                held.optimizer.zero_grad()
                held.counted.clear()
                held.updates += 1
            case _:
                self._check_turn(held, crew)
                held.answered[crew] += 1
                held.known[crew] = held.updates
                self._crews[crew].answer(held.ranges, held.values)
        return True

    def _push(self, held: _Held, crew: int, counts: bool) -> bool:
        """A crew's next gradient, if it can be known, which is added or not."""
        gradients = self._crews[crew].gradients(held.pushed[crew])
        if gradients is None:
            return False
        held.pushed[crew] += 1
        if counts:
            held.counted.append(crew)
            for value, (number, begin, end) in zip(held.values, held.ranges, strict=True):
                part = gradients[number][begin:end]
                value.grad = part.clone() if value.grad is None else value.grad + part
        return True

    def _check_round(self, held: _Held) -> None:
        """An update takes one push, or a round's, all but the backups, as long as nobody has pushed for the last time."""
        needed = 1
        if isinstance(self._gate, Bsp) and max(held.answered) < self._steps:
            needed = len(self._crews) - self._gate.backups
        if len(held.counted) < needed or len(set(held.counted)) < len(held.counted) or len(held.counted) > self._most:
            raise ValueError(f"{self._name} updated by the pushes of {held.counted}, not by {needed}")

    def _check_late(self, held: _Held, crew: int) -> None:
        """Only what comes after its round's update is dropped, and only where there are backups."""
        if not (isinstance(self._gate, Bsp) and self._gate.backups and held.updates > held.known[crew]):
            raise ValueError(f"{self._name} dropped a push of worker {crew} that was not late")

    def _check_turn(self, held: _Held, crew: int) -> None:
        """Nobody that still pushes is more than the bound behind."""
        if isinstance(self._gate, Ssp):
            ahead = held.pushed[crew] - min(held.pushed)
            if ahead > self._gate.bound:
                raise ValueError(f"{self._name} answered worker {crew} {ahead} steps ahead, of at most {self._gate.bound}")
