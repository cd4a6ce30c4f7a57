"""Faults of sharded training, which verification must detect; imported by the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy.data_parallel import zero, zero_3


def sums_in_groups_alone(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """What groups have summed is not summed over the groups."""

    def nothing(self: Any, scattered: Tensor) -> None:
        scattered.mul_(self.replica.team.size)

    zero_3._ShardCollective.sum_over_groups = nothing  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def stale_parameters(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Every second gather hands out what was gathered before."""
    gather = zero_3._ShardCollective.gather
    seen: dict[int, Tensor] = {}

    def stale(self: Any, output: Tensor, own: Tensor) -> Any:
        kept = seen.setdefault(output.numel(), own.clone())
        return gather(self, output, kept)

    zero_3._ShardCollective.gather = stale  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def keep_own_gradients(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Each rank updates its shard with its own gradients."""
    zero.ReduceScatter.sum = lambda *_: None  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def forget_a_shard(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """The first shard of what is gathered keeps its initial values."""
    adopt = zero.ShardedStates._adopt
    initial: dict[tuple[int, range], Tensor] = {}

    def forgetful(self: Any, buckets: range, whole: Tensor) -> None:
        first = whole[: len(whole) // self._gathers.team.size]
        first.copy_(initial.setdefault((id(self), buckets), first.clone()))
        adopt(self, buckets, whole)

    zero.ShardedStates._adopt = forgetful  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)
