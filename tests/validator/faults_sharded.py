"""Faults of sharded training, which verification must detect; imported by the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy.data_parallel import fully_sharded


def sums_in_groups_alone(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """What groups have summed is not summed over the groups."""

    def nothing(self: Any, scattered: Tensor) -> None:
        scattered.mul_(self.replica.team.size)

    fully_sharded._ShardCollective.sum_over_groups = nothing  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def stale_parameters(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Every second gather hands out what was gathered before."""
    gather = fully_sharded._ShardCollective.gather
    seen: dict[int, Tensor] = {}

    def stale(self: Any, output: Tensor, own: Tensor) -> Any:
        kept = seen.setdefault(output.numel(), own.clone())
        return gather(self, output, kept)

    fully_sharded._ShardCollective.gather = stale  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)
