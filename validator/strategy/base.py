"""Trainers: one rank's part in training, whatever the strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import GatherAverage, LocalSgd
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of_rank
from scaleproof.validator.launch.rank import barrier
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.data import Batch, worker_batches
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.gradient_clipping import GradientClipping, Part
from scaleproof.validator.train.host_link import HostLink
from scaleproof.validator.train.master_copies import MasterOptimizer, StaticScaler, first_of, part_of, updated_by
from scaleproof.validator.train.models.models import DTYPES, tie_within
from scaleproof.validator.train.muon import Orthogonalise
from scaleproof.validator.train.offloaded_activations import OffloadedActivations
from scaleproof.validator.train.parameter_average import ParameterAverage
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
    # numbers of the layers that this rank has built, and averages of what its optimizers update
    built: list[int] = field(default_factory=list)
    averages: list[ParameterAverage] = field(default_factory=list)

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

    def build(
        self, numbers: Iterable[int], finish: Finish = lambda *_: None, reduce: Finish = lambda *_: None
    ) -> dict[int, nn.Module]:
        """The layers with these numbers and their initial parameters, on this rank's device.

        finish: called with each layer before the next one is built, so that this rank's part may be all that is left of it.
        reduce: the same before the layer moves to the device.
        Weights that layers share become one parameter after that.
        """
        built: dict[int, nn.Module] = {}
        for number in numbers:
            (layer,) = self.model.build([number])
            reduce(number, layer)
            built[number] = layer.to(self.device, self.dtype)
            finish(number, built[number])
            self.model.mark(number, built[number])
            if self.offloaded_activations is not None:
                self.offloaded_activations.attach(number, built[number])
            self.built.append(number)
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

    def optimizer(
        self, parameters: Iterable[nn.Parameter], updated: int | None = None, sharing: Sharing | None = None
    ) -> torch.optim.Optimizer:
        """The scenario's optimizer over those of `parameters` that are trained, with its states in the precision and memory
        that the scenario gives.

        updated: number of parameters that an update changes, for its emulated duration; None for all. sharing: how ranks share
        the parameters; None where this rank has them as a whole.
        """
        training = self.scenario.training
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        build, is_offloaded = self.model.optimizer, "optimizer" in training.offload
        if sharing is not None:
            build = partial(build, orthogonalise=sharing.orthogonalise)
        inner: torch.optim.Optimizer
        if self.scaler is None and not is_offloaded:
            inner = optimizer = build(trained)
        else:
            device = torch.device("cpu") if is_offloaded else self.device
            optimizer = MasterOptimizer(trained, build, self.updated_dtype, device, self.scaler, training.delay_update)
            inner = optimizer.inner
        if training.ema is not None:
            average = ParameterAverage(updated_by(optimizer, trained), DTYPES[training.ema])
            self.averages.append(average)
            # not in steps that are left out
            inner.register_step_post_hook(lambda *_: average.add())
        elements = updated or sum(part_of(parameter).numel() for parameter in trained)
        if self.host_link is not None:
            self.host_link.begin_updates(optimizer, elements)
        if self.pace is not None:
            job = job_of_rank(self.scenario, self.rank)
            products_s = job.orthogonalising_s(job.layers[number] for number in self.built)
            timed = inner if training.delay_update else optimizer
            self.pace.slow_down(timed, elements, products_s * (1.0 if sharing is None else sharing.share))
        if self.host_link is not None and isinstance(optimizer, MasterOptimizer) and training.delay_update:
            # next to sums of gradients
            master = optimizer
            self.host_link.end_updates(optimizer, elements, lambda: max(self.recorder.passed, master.updated_s))
        elif self.host_link is not None:
            self.host_link.end_updates(optimizer, elements)
        return optimizer

    @cached_property
    def offloaded_activations(self) -> OffloadedActivations | None:
        """Copies of activations to the host; None where they stay on the device."""
        is_offloaded = "activations" in self.scenario.training.offload
        return OffloadedActivations(job_of_rank(self.scenario, self.rank), self.recorder, self.device) if is_offloaded else None

    @cached_property
    def host_link(self) -> HostLink | None:
        """The emulated link to the host that has the optimizer's states; None without such states, and for GPUs, which have a
        link."""
        is_emulated = "optimizer" in self.scenario.training.offload and self.device.type == "cpu"
        return HostLink(job_of_rank(self.scenario, self.rank)) if is_emulated else None


class Sharing(NamedTuple):
    """How ranks share the parameters that an optimizer updates. orthogonalise: makes Muon's matrices orthogonal, of which each
    rank has a part. share: of all matrices, those of which a rank has parts."""

    orthogonalise: Orthogonalise
    share: float = 1.0


class Trainer(ABC):
    """One rank's part in training by some strategy.

    layers: those of the rank by number, of which it may have parts; servers have none. updates_parameters: whether the rank's
    optimizer updates its whole parameters; else it updates shards of them, or there is none. Copies of whole parameters, which
    an optimizer may have, need not fit into a device then.
    """

    layers: dict[int, nn.Module]
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
    def optimizer_sharing(self) -> Sharing | None:
        """How ranks share the parameters that this rank updates as parts of its layers; None where it has them as a whole."""
        return None

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The optimizers that update this rank's parameters, or a server's."""
        own = vars(self).get("optimizer")
        return [] if own is None else [own]

    def skipped(self) -> list[list[int]]:
        """By optimizer that may leave steps out, their numbers, warm-up steps counted from 0."""
        return [one.skipped for one in self.optimizers if isinstance(one, MasterOptimizer)]

    def begin(self) -> None:
        """Prepares what concerns the optimizers of all ranks; to be called on all ranks together before the first step."""
        if self.context.scenario.training.clip_gradients:
            everybody = Collectives(self.recorder, Team.everybody())
            shapes = dict(zip(self.context.model.numbers, self.context.model.shapes(), strict=True))
            sizes = {name: value.numel() for name, value in name_parameters(shapes).items()}

            def add(square: Tensor) -> None:
                with self.recorder.waiting(self.recorder.now()):
                    everybody.sum(square)

            clipping = GradientClipping(self.updated_parts(), sizes, _gathered, add)
            for optimizer in self.optimizers:
                optimizer.register_step_pre_hook(lambda *_: clipping.clip())

    def updated_parts(self) -> Iterable[Part]:
        """What this rank's optimizer updates, by parameter of the model; of parameters that layers share, by the owner's."""
        owners = {f"{tie.layer}.{tie.name}": f"{tie.owner}.{tie.owner_name}" for tie in self.context.model.ties}
        named = {parameter: owners.get(name, name) for name, parameter in name_parameters(self.layers).items()}
        return [Part(name, parameter, first_of(parameter)) for parameter, name in named.items() if parameter.requires_grad]

    def complete(self) -> None:
        """Gives the parameters their final values, in the precision in which they are updated; to be called on all ranks
        together. Of parameters with an average that is the average. They cannot be trained after that."""
        masters = [optimizer for optimizer in self.optimizers if isinstance(optimizer, MasterOptimizer)]
        for optimizer in masters:
            optimizer.finish()
        for average in self.context.averages:
            average.write()
        for optimizer in masters:
            # parameters may be parts of others, which keep their precision
            optimizer.write()
            optimizer.widen()

    def step_loss(self, index: int) -> float:
        """This rank's part of a step's mean loss over all samples; 0 where the rank computes none."""
        return float(self._losses[index]) if index in self._losses else 0.0

    def losses(self) -> dict[int, float]:
        """By step the part of this rank's samples in the mean loss over all; empty where the rank computes no loss."""
        return {index: float(loss) for index, loss in self._losses.items()}

    def notes(self) -> dict[str, Any]:
        """Further facts about the training on this rank, as plain data for JSON."""
        if self.context.scenario.training.state_bits != 8 or not self.context.scenario.training.zero:
            return {}
        # blocks of states begin anew in each part
        return {"parts": [(part.name, part.begin, part.elements) for part in self.updated_parts()]}

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
        self.layers = context.build(context.model.numbers, self.prepare, self.reduce)
        self.module: nn.Module = context.model.graph(self.layers)
        self.batches = context.batches(worker)

    def reduce(self, number: int, layer: nn.Module) -> None:
        """Reduces a layer to what the worker has of it, before it moves to the device."""

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


def _gathered(own: Mapping[str, int]) -> list[Mapping[str, int]]:
    """The objects of all ranks."""
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, own)
    return everyones


def name_parameters(layers: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """Parameters of numbered layers, by 'layer number.name'."""
    return {f"{number}.{name}": value for number, layer in layers.items() for name, value in layer.named_parameters()}


def apply_update(recorder: Recorder, optimizer: torch.optim.Optimizer, **labels: Any) -> None:
    """Takes one optimizer step, recorded as a span, and clears the gradients."""

    with recorder.span(Phase.OPTIMIZER, **labels):
        optimizer.step()
        optimizer.zero_grad()
