"""What one process comes to that follows the same rule as the ranks did: by it a measured run shows that it trained rightly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from simulator.gate import SYNCHRONOUS
from simulator.model import ResNet
from simulator.scenario import Scenario
from simulator.strategy import DataParallel, LocalSgd, ParameterServer
from validator.reference import compressed, periodic, plain, served

# Of a scenario and what each rank told of its training beside that (`Trainer.notes`, in rank order): the parameters that ranks
# should have come to, as 'layer number.name'.
Train = Callable[[Scenario, Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]


class Rule(NamedTuple):
    """What the ranks' training should equal, in words and computed. tolerance: for what the rule's own rounding makes of the
    order in which ranks happen to sum."""

    words: str
    train: Train
    tolerance: float = 0.0


def rule_of(scenario: Scenario) -> Rule:
    """The rule that a scenario's ranks follow."""
    strategy = scenario.strategy
    if isinstance(strategy, LocalSgd):
        return Rule("one process that trains each worker by itself and averages", periodic.train)
    if isinstance(strategy, DataParallel) and strategy.compression is not None:
        words = "one process that compresses each worker's gradients"
        return Rule(words, compressed.train, compressed.tolerance_of(scenario))
    if isinstance(strategy, ParameterServer) and strategy.gate != SYNCHRONOUS:
        return Rule("one process that replays each server's order of pushes and answers", served.train)
    if isinstance(scenario.model, ResNet) and strategy.workers * strategy.microbatches > 1:
        return Rule("one process that normalises each worker's microbatch by itself", plain.train)
    return Rule("one process on the whole batch", plain.train)
