"""Local SGD: workers train independently for a period, then an outer step applies the average of their changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from scaleproof.simulator.parallelism import LocalSgd
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.data import Batch, share_of, whole_batches
from scaleproof.validator.verify.reference import full_batch
from scaleproof.validator.verify.reference.single_process import SingleProcess


class Outer(NamedTuple):
    """Rate r and momentum m of the step v ← m v + g, x ← x + r (g + m v), where g is the mean change of a period."""

    rate: float
    momentum: float


# DiLoCo's rate and momentum, arXiv 2311.08105, section 3.1; with rate 1 and no momentum the mean of the parameters comes out
OUTERS: Final = {"none": Outer(1.0, 0.0), "nesterov": Outer(0.7, 0.9)}


class PeriodicWorker:
    """One worker's parameters, its inner optimizer, and the state of its outer step."""

    def __init__(self, scenario: Scenario, skipped: Collection[int]) -> None:
        """skipped: numbers of the inner steps that the worker left out."""
        self.skipped, self.steps = skipped, 0
        self.process = SingleProcess.of(scenario)
        self.begin = self._values()
        self.velocity = {name: torch.zeros_like(value) for name, value in self.begin.items()}

    def _values(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.process.parameters().items()}

    def train(self, batches: Sequence[Batch], share: slice) -> dict[str, Tensor]:
        """Trains on the worker's share of each batch; returns the change of each parameter."""
        for batch in batches:
            if self.steps not in self.skipped:
                loss = self.process.loss(batch.part(share))
                loss.backward()  # type: ignore[no-untyped-call]
                self.process.update()
            self.steps += 1
        return {name: value - self.begin[name] for name, value in self._values().items()}

    def apply(self, change: Mapping[str, Tensor], outer: Outer) -> None:
        """Takes the outer step from the parameters at the period's start."""
        for name, value in self.process.parameters().items():
            self.velocity[name] = outer.momentum * self.velocity[name] + change[name]
            step = change[name] + outer.momentum * self.velocity[name] if outer.momentum else change[name]
            value.copy_(self.begin[name] + outer.rate * step)
        self.begin = self._values()


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The mean of all workers' parameters after all periods. Takes memory for all workers."""
    strategy = cast(LocalSgd, scenario.strategy)
    workers = [PeriodicWorker(scenario, full_batch.skipped_steps([note])) for note in notes]
    outer, before = OUTERS[strategy.outer], _zero_changes(workers)
    for batches in _periods(scenario, strategy.period):
        changes = [worker.train(batches, share_of(scenario, number)) for number, worker in enumerate(workers)]
        for worker, own, earlier in zip(workers, changes, before, strict=True):
            if strategy.overlap:
                # the others' changes of the previous period, and the worker's own of this one
                known = {name: _mean(before, name) + (own[name] - earlier[name]) / len(workers) for name in own}
            else:
                known = {name: _mean(changes, name) for name in own}
            worker.apply(known, outer)
        before = changes
    parameters = [worker.process.parameters() for worker in workers]
    return {name: _mean(parameters, name) for name in parameters[0]}


def _periods(scenario: Scenario, period: int) -> Iterator[list[Batch]]:
    process = SingleProcess.of(scenario)
    steps = range(len(process.steps) * period)
    batches = whole_batches(scenario, steps, torch.device("cpu"), process.dtype)
    return iter(lambda: list(islice(batches, period)), [])


def _zero_changes(workers: Sequence[PeriodicWorker]) -> list[dict[str, Tensor]]:
    return [{name: torch.zeros_like(value) for name, value in worker.begin.items()} for worker in workers]


def _mean(workers: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    return torch.stack([values[name] for values in workers]).mean(0)
