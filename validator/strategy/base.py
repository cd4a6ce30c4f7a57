"""Trainers: one rank's part in training, whatever the strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import GatherAverage, LocalSgd
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of_rank
from scaleproof.validator.launch.rank import barrier
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.train.data import Batch, worker_batches
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.host_link import HostLink
from scaleproof.validator.train.master_copies import MasterOptimizer, StaticScaler, part_of
from scaleproof.validator.train.models.models import DTYPES, tie_within
from scaleproof.validator.train.perturbed import RankPerturbations
from scaleproof.validator.train.trained_model import TrainedModel

# Called with the number of a layer and the layer.
Finish = Callable[[int, nn.Module], object]
# Precisions in which losses are scaled, so that small gradients do not become zero.
LOSS_SCALED: Final = ("fp16",)


@dataclass(frozen=True)
class Context:
    """Everything a rank needs to train. total_steps: warm-up steps included. pace: durations of emulated compute, or None.
    perturbations: those of the scenario that concern the rank, or None."""

    scenario: Scenario
    rank: int
    device: torch.device
    recorder: Recorder
    total_steps: int
    pace: Pace | None = None
    perturbations: RankPerturbations | None = None

    def begin_run(self) -> None:
        """Meets all other ranks, and begins the time of the scenario's perturbations; then a late rank waits."""
        barrier()
        if self.perturbations is not None:
            self.perturbations.begin()

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the training precision."""
        return DTYPES[self.scenario.training.precision]

    @cached_property
    def model(self) -> TrainedModel:
        """The model that ranks train."""
        return TrainedModel(self.scenario, self.pace)

    def build(self, numbers: Iterable[int], finish: Finish = lambda *_: None) -> dict[int, nn.Module]:
        """The layers with these numbers and their initial parameters, on this rank's device.

        finish: called with each layer before the next one is built, so that this rank's part may be all that is left of it.
        Weights that layers share become one parameter after that.
        """
        built: dict[int, nn.Module] = {}
        for number in numbers:
            (layer,) = self.model.build([number])
            built[number] = layer.to(self.device, self.dtype)
            finish(number, built[number])
            tie_within(built, self.model.ties)
        return built

    def batches(self, worker: int) -> list[Batch]:
        """The worker's batches, one per step."""
        return worker_batches(self.scenario, worker, range(self.total_steps), self.device, self.dtype)

    @cached_property
    def scaler(self) -> GradScaler | None:
        """The scale of losses; None unless gradients are so narrow that they would vanish.

        Ranks that average gradients have one in common, which changes where gradients of any rank are not finite. Workers of
        local SGD have one each. Where others apply a rank's gradients, it does not change.
        """
        strategy = self.scenario.strategy
        if self.scenario.training.precision not in LOSS_SCALED:
            return None
        if strategy.servers or isinstance(strategy, GatherAverage):
            scaler: GradScaler = StaticScaler(self.device.type)
        else:
            scaler = (GradScaler if isinstance(strategy, LocalSgd) else ShardedGradScaler)(self.device.type)
        # stages without a loss need the first scale too, which torch sets when it is first used
        scaler.scale(torch.zeros((), device=self.device))
        return scaler

    @property
    def updated_dtype(self) -> torch.dtype:
        """Data type of what optimizers update: parameters, or their copies where losses are scaled."""
        return self.dtype if self.scaler is None else torch.float32

    @property
    def has_wider_copies(self) -> bool:
        """Whether optimizers update copies of the parameters with more bits than these have."""
        return self.updated_dtype != self.dtype

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss of which a backward pass computes the gradients that `optimizer` expects."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def optimizer(self, parameters: Iterable[nn.Parameter], updated: int | None = None) -> torch.optim.Optimizer:
        """The scenario's optimizer over those of `parameters` that are trained, with its states in the precision and memory
        that the scenario gives.

        updated: number of parameters that an update changes, for its emulated duration; None for all.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        is_offloaded = "optimizer" in self.scenario.training.offload
        if self.scaler is None and not is_offloaded:
            optimizer = self.model.optimizer(trained)
        else:
            device = torch.device("cpu") if is_offloaded else self.device
            optimizer = MasterOptimizer(trained, self.model.optimizer, self.updated_dtype, device, self.scaler)
        elements = updated or sum(part_of(parameter).numel() for parameter in trained)
        if self.host_link is not None:
            self.host_link.begin_updates(optimizer, elements)
        if self.pace is not None:
            self.pace.slow_down(optimizer, updated)
        if self.host_link is not None:
            self.host_link.end_updates(optimizer, elements)
        return optimizer

    @cached_property
    def host_link(self) -> HostLink | None:
        """The emulated link to the host that has the optimizer's states; None without such states, and for GPUs, which have a
        link."""
        is_emulated = "optimizer" in self.scenario.training.offload and self.device.type == "cpu"
        return HostLink(job_of_rank(self.scenario, self.rank)) if is_emulated else None


class Trainer(ABC):
    """One rank's part in training by some strategy.

    updates_parameters: whether the rank's optimizer updates its whole parameters; else it updates shards of them, or there is
    none. Copies of whole parameters, which an optimizer may have, need not fit into a device then.
    """

    updates_parameters = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.recorder = context.recorder
        self._index = 0
        self._losses: dict[int, Tensor] = {}

    def steps(self) -> Iterable[int]:
        """The numbers of the rank's steps, from 0, warm-up steps first."""
        return range(self.context.total_steps)

    def take(self, index: int) -> None:
        """Takes step number `index`, warm-up steps counted from 0."""
        self._index = index
        self.step(index)

    def note_loss(self, loss: Tensor, samples: int) -> None:
        """Adds a mean loss over `samples` samples to the step's. Only one of several ranks with the same loss calls it."""
        part = loss.detach() * (samples / self.context.scenario.total_samples)
        self._losses[self._index] = self._losses[self._index] + part if self._index in self._losses else part

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The optimizers that update this rank's parameters, or a server's."""
        own = vars(self).get("optimizer")
        return [] if own is None else [own]

    def skipped(self) -> list[list[int]]:
        """By optimizer that may leave steps out, their numbers, warm-up steps counted from 0."""
        return [one.skipped for one in self.optimizers if isinstance(one, MasterOptimizer)]

    def complete(self) -> None:
        """Gives the parameters their final values, in the precision in which they are updated; to be called on all ranks
        together. They cannot be trained after that."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, MasterOptimizer):
                optimizer.widen()

    def step_loss(self, index: int) -> float:
        """This rank's part of a step's mean loss over all samples; 0 where the rank computes none."""
        return float(self._losses[index]) if index in self._losses else 0.0

    def losses(self) -> dict[int, float]:
        """By step the part of this rank's samples in the mean loss over all; empty where the rank computes no loss."""
        return {index: float(loss) for index, loss in self._losses.items()}

    def notes(self) -> dict[str, Any]:
        """Further facts about the training on this rank, as plain data for JSON."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends threads and removes hooks that the trainer has started; it cannot train after that."""

    @abstractmethod
    def step(self, index: int) -> None:
        """Trains on batch number `index`, recording every phase."""

    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters that this rank trains, by 'layer number.name'."""


class WholeModel(Trainer):
    """A worker that has all layers; subclasses define what happens with gradients."""

    def __init__(self, context: Context, worker: int) -> None:
        super().__init__(context)
        self.layers = context.build(context.model.numbers, self.prepare)
        self.module: nn.Module = context.model.graph(self.layers)
        self.batches = context.batches(worker)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Prepares a layer for training before the next one is built."""

    def step(self, index: int) -> None:
        """Trains on the whole batch at once."""
        self.backward(self.forward(self.batches[index]))
        self.update()

    def forward(self, batch: Batch) -> Tensor:
        """The loss of the worker's samples."""
        with self.recorder.span(Phase.FORWARD):
            loss = self.context.model.loss(self.module(batch.inputs, **batch.others), batch.targets)
        self.note_loss(loss, len(batch.targets))
        return loss

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients and leaves them in the parameters for `update`."""
        with self.recorder.span(Phase.BACKWARD):
            self.context.scaled(loss).backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def update(self) -> None:
        """Applies the gradients."""

    def parameters(self) -> Mapping[str, Tensor]:
        """Parameters of the model, by name."""
        return name_parameters(self.layers)


def name_parameters(layers: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Parameters of numbered layers, by 'layer number.name'."""
    return {f"{number}.{name}": value for number, layer in layers.items() for name, value in layer.named_parameters()}


def apply_update(recorder: Recorder, optimizer: torch.optim.Optimizer, **labels: Any) -> None:
    """Takes one optimizer step, recorded as a span, and clears the gradients."""

    with recorder.span(Phase.OPTIMIZER, **labels):
        optimizer.step()
        optimizer.zero_grad()
