"""Workers that train on microbatches: the gradients of a step's microbatches are accumulated before the update."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import DataParallel
from scaleproof.validator.strategy.base import Context, WholeModel, apply_update
from scaleproof.validator.strategy.data_parallel.features import connect
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator, GradientPrecision
from scaleproof.validator.strategy.data_parallel.tables import divided
from scaleproof.validator.train.data import Batch, share_of
from scaleproof.validator.train.models.contrastive import ContrastiveLoss
from scaleproof.validator.train.models.recommender import LookingUp


class MicrobatchedReplica(WholeModel):
    """A worker that does not communicate; subclasses do."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, context.rank)
        self.microbatches = strategy.microbatches
        optimizer = None
        if self.updates_parameters:
            optimizer = self.optimizer = context.optimizer(self.module.parameters(), sharing=self.optimizer_sharing)
        precision = GradientPrecision.of(context.scenario.training)
        self.accumulator = Accumulator(self.module.parameters(), precision, optimizer)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Divides embedding tables over workers, and connects contrastive losses."""
        for part in layer.modules():
            if isinstance(part, ContrastiveLoss):
                connect(part, self.context)
        if isinstance(layer, LookingUp) and self.context.scenario.strategy.plan.exchanges_rows:
            layer.lookups = divided(layer.lookups, self.context, weight_of(self.context))

    def parameters(self) -> Mapping[str, Tensor]:
        """Parameters of the model, by name; to be called on all workers together."""
        whole = dict(super().parameters())
        for number, layer in self.layers.items():
            if isinstance(layer, LookingUp):
                whole |= {f"{number}.lookups.{name}": value for name, value in layer.lookups.gathered().items()}
        return whole

    def step(self, index: int) -> None:
        """Trains on the microbatches of a batch in order, and applies their gradients."""
        batch = self.batches[index]
        size = len(batch.targets) // self.microbatches
        for number in range(self.microbatches):
            self.train_on(batch.part(slice(number * size, (number + 1) * size)), number)
        self.update()

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Adds a microbatch's gradients to those of the step's other microbatches."""
        loss = self.loss_of(part, microbatch)
        with self.recorder.span(Phase.BACKWARD, microbatch=microbatch):
            self.context.scaled(loss).backward()  # type: ignore[no-untyped-call]

    def loss_of(self, part: Batch, microbatch: int) -> Tensor:
        """A microbatch's part of the mean loss over the worker's samples."""
        with self.recorder.span(Phase.FORWARD, microbatch=microbatch):
            loss = self.context.model.loss(self.module(part.inputs, **part.others), part.targets)
        self.note_loss(loss, len(part.targets))
        return loss / self.microbatches

    def update(self) -> None:
        """Applies the gradients of all microbatches."""
        apply_update(self.recorder, self.optimizer)

    def close(self) -> None:
        """Ends the accumulation of gradients."""
        self.accumulator.close()

    def is_last(self, microbatch: int) -> bool:
        """Whether this is the last microbatch of a step."""
        return microbatch == self.microbatches - 1


def weight_of(context: Context) -> float:
    """Weight of the mean gradient over this worker's samples in the mean over all samples."""
    share = share_of(context.scenario, context.rank)
    return float(share.stop - share.start) / context.scenario.total_samples
