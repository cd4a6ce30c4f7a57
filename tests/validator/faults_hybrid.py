"""Faults of training on ranks that share a model, which verification must detect; imported by the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy import base
from scaleproof.validator.strategy.hybrid import parallel_replica
from scaleproof.validator.strategy.hybrid.trainer import AveragingReplica
from scaleproof.validator.strategy.model_parallel import overlapped_products
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.strategy.model_parallel.ring_attention import RingAttention
from scaleproof.validator.strategy.model_parallel.tensor import TensorParallel
from scaleproof.validator.strategy.parameter_server import hybrid as hybrid_servers
from scaleproof.validator.strategy.pipeline import trainer


def average_nothing(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Every rank keeps its own gradients."""
    AveragingReplica.average = lambda self: None  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def keep_parts_separate(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Gradients of norms are those of a rank's part of the tokens."""
    TensorParallel.of_parts = lambda self, module: []  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def average_different_experts(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """All workers average what they have, whichever experts that are."""
    parallel_replica.expert_teams = lambda plan: ([], [list(range(plan.ranks))])
    return train_here(scenario, parameters_folder)


def keep_experts_separate(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Ranks do not add up the gradients of experts that they have in common."""
    parallel_replica.expert_teams = lambda plan: ([], [[rank] for rank in range(plan.ranks)])
    return train_here(scenario, parameters_folder)


def keep_a_stage(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """The last rank's stage misses an update."""

    def update(recorder: Any, optimizer: Any, **labels: Any) -> None:
        if here().rank == here().ranks - 1 and here().status.activity.step == 3:
            optimizer.zero_grad()
        base.apply_update(recorder, optimizer, **labels)

    trainer.apply_update = update
    return train_here(scenario, parameters_folder)


def keep_gradients_of_own_summand(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """What each rank reads for its part of a result gets that part's gradient alone."""
    PassCollectives.entered = lambda self, x: x  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def drop_gradients_of_others(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Keys and values get the gradients of this rank's queries alone."""

    def own_part(self: PassCollectives, whole: Tensor, dim: int) -> Tensor:
        return whole.chunk(self.team.size, dim)[self.team.place].contiguous()

    PassCollectives.part_of_sum = own_part  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def attend_to_own_tokens(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Ranks that share a sample's tokens do not exchange them for heads."""
    PassCollectives.transposed = lambda self, x, parted, joined: x  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def lose_a_block(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Blocks that go round are those of the rank itself."""
    RingAttention.send_on = lambda self, tensor: _Still(tensor)  # type: ignore[method-assign, assign, return-value]
    return train_here(scenario, parameters_folder)


class _Still:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        return self._tensor


def mix_up_tokens(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Tokens that experts have seen come back to their neighbours."""
    exchanged = PassCollectives.exchanged

    def rolled(self: PassCollectives, rows: Tensor, *others: Any) -> Tensor:
        return exchanged(self, rows.roll(1, 0), *others)

    PassCollectives.exchanged = rolled  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def forget_a_push(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Servers add the first push alone."""
    add = hybrid_servers.BucketShard.add

    def first(self: hybrid_servers.BucketShard, gradient: Tensor, workers: int) -> None:
        if not self._workers:
            add(self, gradient, workers)

    hybrid_servers.BucketShard.add = first  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def sum_no_other_parts(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Overlapped products leave out the summands of other ranks."""

    def alone(self: Any, part: Any) -> Any:
        return part(self._team.place)

    overlapped_products.OverlappedProducts.sum_of = alone  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)
