"""Faults of pipeline training, which verification must detect; imported by the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.pipelining import PipelineStage

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy.pipeline.trainer import StageTrainer


def train_with_a_stale_stage(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """The last rank's stages miss every second update."""
    average = StageTrainer.average

    def stale(self: StageTrainer) -> None:
        average(self)
        if here().rank == here().ranks - 1 and here().status.activity.step % 2:
            self.optimizer.zero_grad()

    StageTrainer.average = stale  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def train_without_a_microbatch(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """What one microbatch adds to the gradients of the last rank's weights is lost."""
    for name in ("backward_one_chunk", "backward_weight_one_chunk"):
        _lose(name)
    return train_here(scenario, parameters_folder)


def _lose(name: str) -> None:
    whole = getattr(PipelineStage, name)

    def losing(self: Any, microbatch: int, *args: Any, **kwargs: Any) -> None:
        parameters = list(self.submod.parameters())
        kept = [None if p.grad is None else p.grad.clone() for p in parameters]
        whole(self, microbatch, *args, **kwargs)
        if microbatch == 1 and here().rank == here().ranks - 1:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

    setattr(PipelineStage, name, losing)


def train_without_gradients_of_weights(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Of the last microbatch the pass that makes them is left out."""
    weights = PipelineStage.backward_weight_one_chunk

    def skipping(self: Any, microbatch: int, *args: Any, **kwargs: Any) -> None:
        if microbatch < scenario.strategy.microbatches - 1:
            weights(self, microbatch, *args, **kwargs)

    PipelineStage.backward_weight_one_chunk = skipping  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def train_on_a_microbatch_twice(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """The last rank takes the activations of the first microbatch for those of the second, too."""
    received = PipelineStage._retrieve_recv_activations

    def stale(self: Any, microbatch: int) -> Any:
        return received(self, 0 if microbatch == 1 and self.is_last else microbatch)

    PipelineStage._retrieve_recv_activations = stale  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)
