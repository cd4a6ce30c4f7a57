"""Replica: a rank's part of one stage of one worker, where ranks share layers, tokens and experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.validator.strategy.base import Context, Finish
from scaleproof.validator.strategy.layout.mesh import build_mesh, mesh_sizes, teams
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.context import (
    GatheredAttention,
    contiguous_positions,
    exchange_heads,
    own_positions,
)
from scaleproof.validator.strategy.model_parallel.emulated_exchanges import EmulatedExchanges
from scaleproof.validator.strategy.model_parallel.expert import ExpertTeams, share_experts
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.strategy.model_parallel.ring_attention import RingAttention
from scaleproof.validator.strategy.model_parallel.tensor import TensorParallel
from scaleproof.validator.strategy.pipeline.trainer import StageTrainer
from scaleproof.validator.train.data import Batch
from scaleproof.validator.train.models.transformer import Block, Embedding
from scaleproof.validator.train.recompute import exchanges_again


class Replica(StageTrainer):
    """Trains the rank's part; subclasses keep replicas identical. mesh: that of all training ranks."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        plan, mesh = strategy.plan, build_mesh(strategy.plan, context.device.type)
        own = {axis: mesh.get_local_rank(axis) for axis in mesh.mesh_dim_names or ()}
        worker = own["replica"] * mesh_sizes(plan)["expert"] + own["expert"]
        self.mesh, self.plan, self.division = mesh, plan, Division(context, plan, mesh)
        sharing = PassCollectives(context.recorder, Team.along(mesh, "tensor")) if plan.splits else None
        self.create_teams()
        super().__init__(context, strategy, worker, own["stage"], mesh.get_group("stage"), sharing)
        self.batches = [self.division.own_tokens(batch) for batch in self.batches]
        # all tensor-parallel ranks compute the same loss
        self.reports_loss = own["tensor"] == 0

    def create_teams(self) -> None:
        """Creates the teams that `prepare` needs, before layers are built; called on all training ranks."""

    def build(self, numbers: range) -> Mapping[int, nn.Module]:
        """This rank's parts of the layers of a stage."""
        return self.division.build(numbers, self.prepare)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Prepares this rank's part of a layer for training before the next one is built."""

    def columns(self) -> Sequence[Sequence[int]]:
        """The ranks of each pipeline in the order of their stages."""
        return teams(self.mesh, "stage")

    def step(self, index: int) -> None:
        """Trains on a batch. Raises RunError for another number of emulated exchanges than the schedule has."""
        super().step(index)
        self.division.check_step(self.microbatches)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the samples of a microbatch; of divided logits, from all tensor-parallel ranks."""
        tensor = self.division.tensor
        return super().loss(outputs, targets) if tensor is None else tensor.loss(outputs, targets)

    def note_loss(self, loss: Tensor, samples: int) -> None:
        """Adds this rank's part of the loss on one of the tensor-parallel ranks."""
        if self.reports_loss:
            super().note_loss(loss / self.plan.context, samples)

    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters of the rank's stages, joined from all tensor-parallel ranks."""
        tensor = self.division.tensor
        return super().parameters() if tensor is None else tensor.whole(super().parameters())


class Division:
    """Divides a rank's layers, tokens and experts. tensor: tensor parallelism, None without."""

    def __init__(self, context: Context, plan: Plan, mesh: DeviceMesh) -> None:
        self._context, self._plan, recorder = context, plan, context.recorder
        self._layers = context.scenario.model.build_layers(plan.shard)
        self._paced: EmulatedExchanges | None = None
        # number of emulated layers' exchanges in the passes of a microbatch
        self._exchanges = 0
        self.tensor: TensorParallel | None = None
        self._attention: GatheredAttention | RingAttention | None = None
        self._heads: PassCollectives | None = None
        self._experts: ExpertTeams | None = None
        self._devices = context.scenario.cluster.node.devices
        self._positions: Tensor | None = None
        if context.scenario.compute == "paced":
            teams = {axis: PassCollectives(recorder, Team.along(mesh, axis)) for axis in ("tensor", "context")}
            if plan.expert > 1:
                experts = ExpertTeams.of(recorder, plan, self._devices)
                named = {"expert": experts.all_ranks, "between": experts.between, "inside": experts.inside}
                teams |= {name: team for name, team in named.items() if team is not None}
            self._paced = EmulatedExchanges(teams, context.dtype, context.scenario)
            return
        # only transformers can be divided
        spec = cast(Transformer, context.scenario.model)
        if plan.tensor > 1:
            folds = plan.shard.expert_tensor is not None
            modes = {"sequence": plan.sequence_parallel, "overlap": plan.overlap_tensor, "folds": folds}
            self.tensor = TensorParallel(mesh, recorder, spec.vocabulary, **modes)
        if plan.context > 1:
            readers = PassCollectives(recorder, Team.along(mesh, "context"))
            positions = contiguous_positions if plan.context_by == "ulysses" else own_positions
            self._positions = positions(readers.team.place, plan.context, spec.sequence).to(context.device)
            if plan.context_by == "ulysses":
                self._heads = readers
            else:
                attention = RingAttention if plan.context_by == "ring" else GatheredAttention
                self._attention = attention(readers, spec.sequence)
        if plan.expert > 1:
            self._experts = ExpertTeams.of(recorder, plan, self._devices)

    def build(self, numbers: range, finish: Finish) -> Mapping[int, nn.Module]:
        """This rank's parts of the layers of a stage. finish: called with each part before the next layer is built."""
        repeated = exchanges_again(self._context.scenario, [self._layers[number] for number in numbers])

        def divide(number: int, layer: nn.Module) -> None:
            self._divide(layer, self._layers[number], repeated[number - numbers.start])
            finish(number, layer)

        return self._context.build(numbers, divide)

    def _divide(self, layer: nn.Module, spec: Layer, again: Sequence[Exchange]) -> None:
        """Reduces a layer to this rank's part. again: exchanges that recomputation repeats."""
        if self._paced is not None and spec.exchanges:
            self._exchanges += len(spec.exchanges) + len(again)
            self._paced.attach(layer, spec, again)
        if isinstance(layer, Embedding) and self._positions is not None:
            layer.positions = self._positions
        if isinstance(layer, Block) and self._attention is not None and self._positions is not None:
            layer.attend = self._attention
            layer.turn_at(self._positions)
        if isinstance(layer, Block) and self._heads is not None:
            exchange_heads(layer, self._heads)
        if isinstance(layer, Block) and self._experts is not None:
            share_experts(layer, self._experts, self._plan, self._devices)
        if self.tensor is not None:
            self.tensor.divide(layer)

    def check_step(self, microbatches: int) -> None:
        """Raises RunError where emulated layers made another number of exchanges than the schedule has."""
        if self._paced is not None:
            self._paced.check_step(microbatches * self._exchanges)

    def own_tokens(self, batch: Batch) -> Batch:
        """This rank's tokens of a batch."""
        if self._positions is None:
            return batch
        return Batch(batch.inputs.index_select(1, self._positions), batch.targets.index_select(1, self._positions))
