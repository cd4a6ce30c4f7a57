"""Gradient buckets: gradients in the order in which backward passes complete them, grouped into buckets that are summed
together, the layers of pipeline ranks that they belong to, and the collectives that move them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.buckets import bucket_bounds
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.model.layers import Layer, block_range, copied_weights, with_frozen_copy
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.job import Job

# Names of groups of ranks with the same parameters: all replicas, or ranks with the same experts of a mixture.
REPLICA_GROUPS: Final = ("replicas", "experts")


class Gradients:
    """Gradients of layers in the order in which backward passes produce them, the reverse of the layers.

    tensors: elements of each tensor. filled: elements of all tensors before each, and of all.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.tensors = tuple(tensor for layer in reversed(layers) for tensor in reversed(layer.tensors))
        self.filled = list(itertools.accumulate(self.tensors, initial=0))
        self._owners = [number for number in reversed(range(len(layers))) for _ in layers[number].tensors]
        # where the tensors of each layer end, and those of the previous layer begin
        self._ends = list(itertools.accumulate((len(layer.tensors) for layer in reversed(layers)), initial=0))[::-1]

    def bounds(self, stage: range) -> list[int]:
        """Positions where the tensors of consecutive layers begin and end."""
        return [self._ends[stage.stop], self._ends[stage.start]]

    def buckets(self, stage: range, element_bytes: int, first_bytes: float, bucket_bytes: float) -> tuple[list[int], list[int]]:
        """Buckets of consecutive layers: the positions where each begins and the last ends (`bucket_bounds`), and for each
        bucket the layer that completes it. One that does not reach its limit is complete with the first layer."""
        cumulative, (begin, end) = self.filled, self.bounds(stage)
        limits = [math.ceil(min(size / element_bytes, cumulative[-1] + 1)) for size in (first_bytes, bucket_bytes)]
        bounds = bucket_bounds(cumulative, begin, end, *limits)
        layers = [self._owners[bound - 1] for bound in bounds[1:]]
        if layers and cumulative[end] - cumulative[bounds[-2]] < limits[len(layers) > 1]:
            layers[-1] = stage.start
        return bounds, layers


class SyncUnit(NamedTuple):
    """Layers whose gradients are complete together, or that are gathered together. bounds: positions where the buckets that are
    then full begin among all gradients, and where the last ends."""

    layers: range
    bounds: list[int]


class ReplicaCollective(NamedTuple):
    """A collective over a group of replicas, by its name in `GradientSync`. dimension: that it is reported with."""

    op: Op
    group: str
    size_bytes: float
    dimension: Dimension

    @property
    def number(self) -> int:
        """The number of the dimension and the collective."""
        return number_of(self.dimension, Collective.of(self.op))


class Issued(NamedTuple):
    """A collective in the step of a pipeline rank.

    layers: whose gradients or parameters it moves. slot: scheduling slot. after: task of the rank's schedule that it follows.
    before: task that waits for it; holds: task whose messages wait for it; −1 for none.
    """

    collective: ReplicaCollective
    layers: range
    slot: int
    after: int
    before: int = -1
    holds: int = -1


class RankLayers:
    """A model's layers as pipeline ranks have them. copied: parameters of which the last stage has a copy. gradients: those of
    the parameters that all workers have, without experts."""

    def __init__(self, layers: Sequence[Layer], plan: Plan, element_bytes: int) -> None:
        """element_bytes: of gathered parameters."""
        self.layers = with_copies(layers, plan)
        self.copied = self.layers[-1].trained_parameters - layers[-1].trained_parameters
        replicated = [_without_experts(layer) if plan.divides_experts else layer for layer in self.layers]
        self.gradients = Gradients(replicated)
        trained = [layer.trained_parameters for layer in replicated]
        experts = [layer.trained_parameters - shared for layer, shared in zip(self.layers, trained, strict=True)]
        frozen = [layer.gathered_elements(element_bytes) - layer.trained_parameters for layer in self.layers]
        self._trained, self._experts, self._frozen = (
            list(itertools.accumulate(each, initial=0)) for each in (trained, experts, frozen)
        )

    def parameters(self, stage: range) -> tuple[int, int]:
        """Numbers of gathered elements of a stage: those that all workers have, with frozen ones, and those of experts."""
        trained, experts = self.trained(stage)
        return trained + self._frozen[stage.stop] - self._frozen[stage.start], experts

    def trained(self, stage: range) -> tuple[int, int]:
        """Numbers of trained parameters of a stage: those that all workers have, and those of experts."""
        begin, end = stage.start, stage.stop
        return self._trained[end] - self._trained[begin], self._experts[end] - self._experts[begin]

    def by_group(self, *layers: range, trained: bool) -> dict[str, int]:
        """Number of parameters of some layers, or of the trained ones only, by the group of ranks that have the same."""
        counts = map(sum, zip(*map(self.trained if trained else self.parameters, layers), strict=True))
        return {group: count for group, count in zip(REPLICA_GROUPS, counts, strict=True) if count}

    @property
    def has_experts(self) -> bool:
        """Whether workers have different experts with gradients."""
        return self._experts[-1] > 0

    def has_backward(self, layers: range) -> bool:
        """Whether any of some layers has a backward pass."""
        return any(self.layers[number].has_backward for number in layers)

    def units(self, stage: range, plan: Plan, job: Job) -> list[SyncUnit]:
        """Units of a stage of the model in forward order: single layers if ZeRO's stage 3 gathers them or hosts have a part of
        what they need, one if gradients are summed whole, else by buckets."""
        each = [range(i, i + 1) for i in stage]
        if not plan.averages or plan.servers:
            return [SyncUnit(layers, []) for layers in (each if job.offload else [stage])]
        if job.zero == 3 or "activations" in job.offload:
            return [SyncUnit(layers, self.gradients.bounds(layers)) for layers in each]
        if job.sums_whole:
            return [SyncUnit(stage, self.gradients.bounds(stage))]
        size = job.reduced_bytes
        bounds, layers = self.gradients.buckets(stage, size, *plan.bucket_limits_bytes)
        if not (plan.overlap or plan.gathering(job.zero) == "next forward pass" or job.zero == 2):
            return [SyncUnit(stage, bounds)]
        result, begin, end = list[SyncUnit](), 0, stage.stop
        # all buckets that one layer completes are one unit
        for layer, buckets in itertools.groupby(layers):
            count = len(list(buckets))
            result.append(SyncUnit(range(layer, end), bounds[begin : begin + count + 1]))
            begin, end = begin + count, layer
        if end > stage.start:
            result.append(SyncUnit(range(stage.start, end), []))
        return result[::-1]


def _without_experts(layer: Layer) -> Layer:
    """The layer with only the gradients that all workers have, as one tensor, since tensors of experts are not identified."""
    shared = layer.trained_parameters - layer.expert_parameters
    return replace(layer, tensors=(shared,)) if layer.expert_parameters else layer


def with_copies(layers: Sequence[Layer], plan: Plan) -> Sequence[Layer]:
    """The layers as pipeline ranks have them: the last with a copy of the weights that it shares with the first rank."""
    first, last = ends(plan)
    if first == last or not layers[-1].pinned_to_end:
        return layers
    own = layers[block_range(layers)[1] :]
    last_layer, copied = with_frozen_copy(layers[-1], own), copied_weights(layers[-1], own, layers)
    return [*layers[:-1], replace(last_layer, tensors=(*last_layer.tensors, *copied))]


def ends(plan: Plan) -> tuple[int, int]:
    """The pipeline ranks with the first and the last stage of the model; the same rank in a V-shaped pipeline."""
    last = plan.stages * plan.chunks - 1
    first_rank, last_rank = (next(rank for rank, stages in enumerate(plan.stage_of) if stage in stages) for stage in (0, last))
    return first_rank, last_rank
