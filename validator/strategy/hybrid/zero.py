"""Sharded replicas: ranks with the same parameters shard optimizer states, gradients, and with ZeRO's stage 3 parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import cast

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from scaleproof.simulator.parallelism import Hybrid
from scaleproof.validator.strategy.base import Context, Sharing, name_parameters
from scaleproof.validator.strategy.data_parallel.gradient_precision import GradientPrecision
from scaleproof.validator.strategy.data_parallel.zero import GatheredUnit, ShardedStates, Sharding
from scaleproof.validator.strategy.data_parallel.zero_3 import BackwardSettings, LayerSharder, full
from scaleproof.validator.strategy.hybrid.parallel_replica import ParallelReplica
from scaleproof.validator.strategy.layout.flat import pack, views
from scaleproof.validator.strategy.model_parallel.expert import ShardedExperts
from scaleproof.validator.strategy.pipeline.trainer import Chunk
from scaleproof.validator.train.gradient_clipping import Part
from scaleproof.validator.train.master_copies import part_of
from scaleproof.validator.train.models.fine_tuning import trained_parameters


class ShardingReplica(ParallelReplica):
    """Shards optimizer states over ranks with the same parameters, and with ZeRO's stage 2 gradients."""

    updates_parameters = False

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.states = list(self._states())
        pieces = [piece for states in self.states for piece in states.pieces]
        self.optimizer = context.optimizer(pieces, sharing=self.states[0].sharing if self.states else None)
        layers = list(self.layers.values())
        self.units: list[GatheredUnit] = []
        if self.plan.gathering(context.scenario.training.zero) == "next forward pass":
            self.units = [unit for states in self.states for unit in states.units(layers)]

    def step(self, index: int) -> None:
        """Trains on a batch; the updated parameters may arrive during the first forward pass."""
        for unit in self.units:
            unit.begin()
        super().step(index)

    def average(self) -> None:
        """Gives each shard its gradient."""
        for states in self.states:
            states.reduce()

    def update(self) -> None:
        """Applies the gradients to this rank's shards, and gathers the parameters unless the next step does."""
        super().update()
        if not self.units:
            self._gather()

    def updated_parts(self) -> Iterable[Part]:
        """This rank's shards, by parameter of the model."""
        whole = list(super().updated_parts())
        return chain(*(states.parts(whole) for states in self.states))

    def parameters(self) -> dict[str, Tensor]:
        """The parameters of the rank's stages, gathered after the last step; to be called on all ranks."""
        self._gather()
        return dict(super().parameters())

    def close(self) -> None:
        """Removes hooks and ends the sums of buckets."""
        for unit in self.units:
            unit.close()
        for states in self.states:
            states.close()
        super().close()

    def _gather(self) -> None:
        for states in self.states:
            states.gather()

    def _states(self) -> Iterator[ShardedStates]:
        for one in self.parameter_sets():
            shard, groups = self.sharing_teams(one)
            stages = [stage for stage in one.stages if stage]
            if stages:
                sharding = Sharding(self.context, self.thread, self.accumulator, self.weight, one.limits_bytes, self.stage)
                yield sharding.states(stages, shard, groups)


class FullyShardedReplica(ParallelReplica):
    """Shards parameters over ranks with the same ones, layer by layer.

    Gradients of which each tensor-parallel rank computes a part are summed over these ranks after a step's last backward pass,
    shard by shard.
    """

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        self.own_summands: list[nn.Parameter] = []
        # by layer, its sharded modules
        self._sharded: dict[int, list[FSDPModule]] = {}
        super().__init__(context, strategy)
        for stage in self.stages:
            chunk = cast(Chunk, stage.submod)
            parts = set(chunk.modules())
            layers = [self._sharded[number] for number, layer in self.layers.items() if layer in parts]
            self._sharder.link(chunk.graph, layers, self._teams[0])
            stage.prepare_backward = BackwardSettings(layers, self.plan)

    @property
    def optimizer_sharing(self) -> Sharing:
        """How ranks share most parameters."""
        return self._sharder.sharing(trained_parameters(self.module), *self._teams)

    def create_teams(self) -> None:
        """Creates the ranks that shard, and those with the same shard: of most parameters, and of experts."""
        whole, _, experts = self.kinds()
        self._teams, self._teams_of_experts = self.sharing_teams(whole), self.sharing_teams(experts)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Shards this rank's part of a layer before the next one is built: whole models may not fit into a device."""
        before, parts, tensor = list(layer.parameters()), self.summands(layer), self.division.tensor
        experts = [part for part in layer.modules() if isinstance(part, ShardedExperts)]
        inner = [self._sharder.shard(part, *self._teams_of_experts) for part in experts]
        self._sharded[number] = [self._sharder.shard(layer, *self._teams), *inner]
        # shards have replaced the parameters
        after = list(layer.parameters())
        if tensor is not None:
            tensor.replace(zip(before, after, strict=True))
        self.own_summands += [new for old, new in zip(before, after, strict=True) if old in parts]

    def average(self) -> None:
        """Sums the parts of gradients that tensor-parallel ranks have computed; others have been summed already."""
        if self.own_summands and (tensor := self.division.tensor) is not None:
            gradients = [part_of(cast(Tensor, parameter.grad)) for parameter in self.own_summands]
            packed = pack(gradients)
            tensor.collectives.sum(packed)
            for gradient, summed in zip(gradients, views(packed, gradients), strict=True):
                gradient.copy_(summed)

    def parameters(self) -> Mapping[str, Tensor]:
        """The gathered parameters of the rank's stages; to be called on all ranks."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        named, tensor = name_parameters(self.layers), self.division.tensor
        return {name: full(value) if tensor is None else tensor.joined(value, full(value)) for name, value in named.items()}

    @cached_property
    def _sharder(self) -> LayerSharder:
        reduced = GradientPrecision.of(self.context.scenario.training).reduced
        return LayerSharder(self.context, reduced, self.plan.workers * self.plan.context, self.stage)
