"""Pipeline parallelism: torch.distributed.pipelining runs the schedule on stages that record their passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.strategy import Pipeline
from scaleproof.simulator.strategy.replica_strategy import ReplicaStrategy
from scaleproof.validator.strategy.base import Context, Trainer, apply_update, name_parameters
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator, GradientPrecision
from scaleproof.validator.strategy.pipeline.recorded_stage import PassRecorder, RecordedStage
from scaleproof.validator.strategy.pipeline.schedules import build_schedule, sends_freely
from scaleproof.validator.train.models import models
from scaleproof.validator.train.recompute import chained

Build = Callable[[range], Mapping[int, nn.Module]]


def create(context: Context, strategy: Pipeline) -> Trainer:
    """The trainer of this rank's stages."""
    return StageTrainer(context, strategy, worker=0, stage=context.rank)


class Chunk(nn.Module):
    """The layers of a stage. Their output is never a view: torch detaches it in place, which views do not allow."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the layers, copied if it is a view."""
        x = self.layers(x)
        # private: as in torch 2.11 to 2.13
        return x.clone() if x._is_view() else x


class StageTrainer(Trainer):
    """One rank of one worker's pipeline, with one or several stages of the model.

    stage: the rank's place in the pipeline. group: the pipeline's ranks in order, all ranks if None. build: builds the layers
    with given numbers, in the training precision and on this rank's device; `context.build` if None.
    """

    def __init__(
        self,
        context: Context,
        strategy: ReplicaStrategy,
        worker: int,
        stage: int,
        group: dist.ProcessGroup | None = None,
        build: Build | None = None,
    ) -> None:
        super().__init__(context)
        plan, job = strategy.plan, context.scenario.job()
        ranges, numbers = strategy.ranges(job), plan.stage_of[stage]
        chunks = [(build or context.build)(ranges[number]) for number in numbers]
        self.stage, self.microbatches = stage, plan.microbatches
        self.layers = {number: layer for chunk in chunks for number, layer in chunk.items()}
        self.batches = context.batches(worker)
        self.module = nn.Sequential(*self.layers.values())
        self.pass_recorder = PassRecorder(self.recorder, sends_freely(plan))
        self.stages = [
            RecordedStage(
                self.pass_recorder, Chunk(chained(context.scenario, chunk)), number, len(ranges), context.device, group=group
            )
            for number, chunk in zip(numbers, chunks, strict=True)
        ]
        self.optimizer = context.optimizer(self.module.parameters())
        precision = GradientPrecision.of(context.scenario.training)
        self.accumulator = Accumulator(self.module.parameters(), precision, self.optimizer)
        self.schedule = build_schedule(plan, self.stages, self._loss, plan.pass_times(plan.exchanging(job)))

    def step(self, index: int) -> None:
        """Trains on the microbatches of a batch in the order of the schedule, and applies their gradients."""
        batch = self.batches[index]
        inputs = (batch.inputs,) if any(stage.is_first for stage in self.stages) else ()
        targets = batch.targets if any(stage.is_last for stage in self.stages) else None
        self.pass_recorder.begin_step()
        self.schedule.step(*inputs, target=targets, return_outputs=False)
        self.pass_recorder.end_step()
        self.update()

    def update(self) -> None:
        """Applies the gradients."""
        self.average()
        apply_update(self.recorder, self.optimizer, stage=self.stage)

    def average(self) -> None:
        """Averages gradients over workers; nothing to do, as there is one."""

    def close(self) -> None:
        """Ends the accumulation of gradients."""
        self.accumulator.close()

    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters of the rank's stages."""
        return name_parameters(self.layers)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the samples of a microbatch."""
        return models.loss(outputs, targets)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A microbatch's part of the step's mean loss; ends the recorded forward pass."""
        loss = self.loss(outputs, targets)
        for stage in self.stages:
            stage.end_forward()
        self.note_loss(loss, len(targets))
        return loss / self.microbatches
