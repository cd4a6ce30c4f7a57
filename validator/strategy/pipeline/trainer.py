"""Pipeline parallelism: torch.distributed.pipelining runs the schedule on stages that record their passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.parallelism import Pipeline
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.strategy.plan_costs import cut, pass_times, with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.strategy.base import Context, Trainer, apply_update, name_parameters
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator, GradientPrecision
from scaleproof.validator.strategy.layout.shared_weights import SharedWeights
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, both_ways, identity
from scaleproof.validator.strategy.pipeline.recorded_stage import PassRecorder, RecordedStage
from scaleproof.validator.strategy.pipeline.schedules import build_schedule, sends_freely
from scaleproof.validator.train.layer_graph import LayerGraph, Values, as_tuple, data_name
from scaleproof.validator.train.models.models import tie_within
from scaleproof.validator.train.models.wiring import DATA, Wire


def create(context: Context, strategy: Pipeline) -> Trainer:
    """The trainer of this rank's stages."""
    return StageTrainer(context, strategy, worker=0, stage=context.rank)


class Chunk(nn.Module):
    """The layers of a stage.

    Their outputs are neither views nor inputs, since torch detaches them in place. Outputs and the gradients of inputs are
    contiguous, since they are sent.

    before, behind: ranks of which each receives a shard of the activations from other ranks, or sends one; None where they are
    whole.
    """

    def __init__(self, graph: LayerGraph, before: PassCollectives | None = None, behind: PassCollectives | None = None) -> None:
        super().__init__()
        self.graph, self.before, self.behind = graph, before, behind

    def forward(self, *entering: Tensor, **data: Tensor) -> Values:
        """The outputs of the layers, copied where they are views or only pass through."""
        inputs = [both_ways(identity, Tensor.contiguous, x) if x.requires_grad else x for x in entering]
        if self.before is not None:
            inputs = [self.before.joined(x, -1) for x in inputs]
        outputs: Values = self.graph(*inputs, **data)
        if self.graph.ends:
            return outputs
        if self.behind is not None:
            shards = tuple(self.behind.divided(x, -1) for x in as_tuple(outputs))
            return shards[0] if len(shards) == 1 else shards
        # private: as in torch 2.11 to 2.13
        copied = tuple(x.clone() if x._is_view() else x.contiguous() for x in as_tuple(outputs))
        return copied[0] if len(copied) == 1 else copied


class StageTrainer(Trainer):
    """One rank of one worker's pipeline, with one or several stages of the model.

    stage: the rank's place in the pipeline. group: the pipeline's ranks in order, all ranks if None. sharing: ranks with the
    same activations, of which each sends a shard; None if each sends them whole.
    """

    def __init__(
        self,
        context: Context,
        strategy: ReplicaStrategy,
        worker: int,
        stage: int,
        group: dist.ProcessGroup | None = None,
        sharing: PassCollectives | None = None,
    ) -> None:
        super().__init__(context)
        plan, job = strategy.plan, job_of(context.scenario)
        ranges, numbers = cut(job, plan), plan.stage_of[stage]
        self.stage, self.microbatches = stage, plan.microbatches
        chunks = [self.build(ranges[number]) for number in numbers]
        self.layers = {number: layer for chunk in chunks for number, layer in chunk.items()}
        tie_within(self.layers, context.model.ties)
        self.batches = context.batches(worker)
        self.module = nn.ModuleList(self.layers.values())
        self.pass_recorder = PassRecorder(self.recorder, sends_freely(plan))
        # stages whose activations come from another rank, or go to one
        before, behind = ([number + way not in numbers for number in numbers] for way in (-1, 1))
        graphs = [
            Chunk(context.model.graph(chunk), sharing if number and moves_in else None, sharing if moves_on else None)
            for chunk, number, moves_in, moves_on in zip(chunks, numbers, before, behind, strict=True)
        ]
        self.stages = [
            RecordedStage(self.pass_recorder, graph, number, len(ranges), context.device, group=group)
            for number, graph in zip(numbers, graphs, strict=True)
        ]
        self.needed = sorted({name for chunk in graphs for name in chunk.graph.needed})
        optimizer = None
        if self.updates_parameters:
            optimizer = self.optimizer = context.optimizer(self.module.parameters(), sharing=self.optimizer_sharing)
        precision = GradientPrecision.of(context.scenario.training)
        self.accumulator = Accumulator(self.module.parameters(), precision, optimizer)
        place_of = [
            next(place for place, own in enumerate(plan.stage_of) if any(layer in ranges[stage] for stage in own))
            for layer in context.model.numbers
        ]
        self.shared = SharedWeights(self.recorder, self.layers, context.model.ties, place_of, self.columns())
        self.schedule = build_schedule(plan, self.stages, self._loss, pass_times(plan, with_collectives(plan, job)))

    def build(self, numbers: range) -> Mapping[int, nn.Module]:
        """The layers of a stage, in the training precision and on this rank's device."""
        return self.context.build(numbers)

    def step(self, index: int) -> None:
        """Trains on the microbatches of a batch in the order of the schedule, and applies their gradients."""
        batch = self.batches[index]
        inputs = (batch.inputs,) if any(stage.is_first for stage in self.stages) else ()
        tensors = {data_name(Wire(DATA)): batch.inputs, **batch.others}
        others: dict[str, Any] = {name: tensors[name] for name in self.needed}
        targets = batch.targets if any(stage.is_last for stage in self.stages) else None
        self.pass_recorder.begin_step()
        self.schedule.step(*inputs, target=targets, return_outputs=False, **others)
        self.pass_recorder.end_step()
        self.update()

    def update(self) -> None:
        """Applies the gradients."""
        self.average()
        apply_update(self.recorder, self.optimizer, stage=self.stage)

    def columns(self) -> Sequence[Sequence[int]]:
        """The ranks of each pipeline in the order of their places."""
        return [range(dist.get_world_size())]

    def average(self) -> None:
        """Averages gradients over workers, of which there is one; sums those of weights that stages share."""
        self.shared.sum()

    def close(self) -> None:
        """Ends the accumulation of gradients."""
        self.accumulator.close()

    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters of the rank's stages."""
        return name_parameters(self.layers)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the samples of a microbatch."""
        return self.context.model.loss(outputs, targets)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A microbatch's part of the step's mean loss; ends the recorded forward pass."""
        loss = self.loss(outputs, targets)
        for stage in self.stages:
            stage.end_forward()
        self.note_loss(loss, len(targets))
        return self.context.scaled(loss / self.microbatches)
