"""Reference training: one process follows the same rule as the ranks, and its parameters show whether a run trained correctly.

Rules share with the ranks what is trained: layers, batches and the optimizer (`validator.train.models.models`, `data`,
`strategy.base`). How it is trained is written a second time, constants such as DiLoCo's included: shared code could be wrong on
both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.model.layers import has_operator
from scaleproof.simulator.parallelism import LocalSgd, ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.verify.reference import compressed, experts, full_batch, periodic, server_log

# Maps a scenario and each rank's notes (`Trainer.notes`, in rank order) to the parameters that ranks should end with, by
# 'layer number.name'.
Train = Callable[[Scenario, Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]
# A replay sums in the order in which servers did.
_REPLAYED: Final = 1e-6


class Rule(NamedTuple):
    """Reference training in words and as a function. tolerance: largest deviation; None for that of sums in another order."""

    words: str
    train: Train
    tolerance: float | None = None


def rule_of(scenario: Scenario) -> Rule:
    """The rule that a scenario's ranks follow."""
    strategy = scenario.strategy
    if isinstance(strategy, LocalSgd):
        return Rule("one process that trains each worker by itself and averages", periodic.train)
    if strategy.plan.compression is not None:
        words = "one process that compresses each worker's gradients"
        return Rule(words, compressed.train, compressed.tolerance_of(scenario) or None)
    if isinstance(strategy, ParameterServer) and strategy.consistency != SYNCHRONOUS:
        words = "one process that replays each server's order of pushes and replies"
        return Rule(words, server_log.train, None if scenario.training.precision == "fp16" else _REPLAYED)
    if experts.is_rounded(scenario):
        return Rule("one process that rounds messages to experts", experts.train, experts.TOLERANCE)
    if strategy.plan.node_limit is not None and scenario.compute == "real":
        return Rule("one process that limits the nodes of a token's experts", experts.train)
    if has_operator(scenario.model, "batch") and strategy.workers * strategy.microbatches > 1:
        return Rule("one process that normalises each worker's microbatch by itself", full_batch.train)
    return Rule("one process on the whole batch", full_batch.train)
