"""The model that a scenario's ranks train: real torch modules, or layers that emulate them, with their wiring and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor, nn

from scaleproof.simulator.model import ModelSpec, Traced
from scaleproof.simulator.model.fine_tuning import FineTuning
from scaleproof.simulator.model.tracing.user_function import UserModel
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.train import emulated_compute
from scaleproof.validator.train.capabilities import has_documents, is_padded, trains_by_layers
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.layer_graph import LayerGraph, Values
from scaleproof.validator.train.models import contrastive, models, traced
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.models.transformer import cross_entropy, mean_of_samples
from scaleproof.validator.train.models.wiring import DATA, Tie, Wire, Wiring, wiring_of
from scaleproof.validator.train.muon import Orthogonalise, each_whole, mark_matrices
from scaleproof.validator.train.optimizers import build_optimizer, build_row_optimizer
from scaleproof.validator.train.recompute import prepare


class RealModel:
    """The torch modules of a model. samples: number in a microbatch; None to train a user's module as it is, undivided.
    tuning: what is trained of the model; None for all of it, or what a user's module says. documents: whether blocks read the
    documents of tokens, as the last tensor of a batch."""

    def __init__(
        self, spec: ModelSpec, seed: int, dtype: torch.dtype, samples: int | None, tuning: FineTuning | None = None,
        documents: bool = False,
    ) -> None:  # fmt: skip
        self._spec, self._seed, self._tuning = spec, seed, tuning
        self._user: UserModel | None = None
        self._layers: list[nn.Module] | None = None
        self.prelude: nn.Module | None = None
        # number of tensors that the prelude computes
        self.derived = 0
        if isinstance(spec, Traced):
            user = self._user = traced.user_model(spec.source, seed, dtype)
            if samples is None:
                self._layers = [
                    traced.WithLoss(spec.source, user)
                    if spec.contrast is None
                    else contrastive.Contrasted(spec.source, user, spec.contrast)
                ]
                self.wiring: Wiring = [tuple(Wire(DATA, place) for place in range(len(user.inputs) + len(user.targets)))]
                self.ties: list[Tie] = []
            else:
                loss = None if spec.contrast is None else contrastive.ContrastiveLoss(spec.contrast)
                divided = traced.divided(spec.source, user, samples, loss)
                self._layers, self.wiring, self.ties = list(divided.layers), divided.wiring, list(divided.ties)
                self.prelude, self.derived = divided.prelude, divided.derived
        else:
            self.wiring, self.ties = models.family_of(spec).wiring(spec), list(models.family_of(spec).ties(spec))
        if documents:
            place = Wire(DATA, 1 + max(wire.output for read in self.wiring for wire in read if wire.layer == DATA))
            blocks: int = getattr(spec, "layers")  # noqa: B009 - of models whose samples have lengths
            reading = [(*read, place) for read in self.wiring[1 : 1 + blocks]]
            self.wiring = [self.wiring[0], *reading, *self.wiring[1 + blocks :]]

    def build(self, numbers: Iterable[int]) -> list[nn.Module]:
        """The layers with these numbers and their initial parameters on the CPU, in fp32 or, of a user's module, in `dtype`."""
        if self._layers is not None:
            return [self._layers[number] for number in numbers]
        return models.build(self._spec, numbers, self._seed, self._tuning)

    def loss(self, outputs: Values, targets: Tensor) -> Tensor:
        """The mean loss over samples."""
        return models.family_of(self._spec).loss(outputs, targets)

    @property
    def own_optimizer(self) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None:
        """The optimizer of the user's module, if it has one."""
        return None if self._user is None else self._user.optimizer


class EmulatedModel:
    """Layers that emulate those of a scenario. pace: durations; None to emulate without waiting."""

    def __init__(self, scenario: Scenario, pace: Pace | None) -> None:
        self._scenario, self._pace = scenario, pace
        self.wiring, self.ties = wiring_of(scenario.model.build_layers()), emulated_compute.ties(scenario)
        self.prelude: nn.Module | None = None
        self.derived = 0

    def build(self, numbers: Iterable[int]) -> list[nn.Module]:
        """The layers with these numbers and their initial parameters, in fp32 on the CPU."""
        return emulated_compute.build(self._scenario, numbers, self._pace)

    def loss(self, outputs: Values, targets: Tensor) -> Tensor:
        """The mean loss over samples."""
        return cross_entropy(outputs, targets)  # type: ignore[arg-type]

    own_optimizer: Final = None


def distinct_parameters(layers: Sequence[nn.Module]) -> list[tuple[int, str, nn.Parameter]]:
    """All parameters with the numbers of their layers and names; those that layers share belong to the first one."""
    first_of = {parameter: number for number, layer in [*enumerate(layers)][::-1] for parameter in layer.parameters()}
    return [
        (number, name, parameter)
        for number, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if first_of[parameter] == number
    ]


@dataclass(frozen=True)
class TrainedModel:
    """A scenario's model. pace: durations of emulated compute; None to compute, or to emulate without waiting. workers: number
    of those whose samples are one batch of it."""

    scenario: Scenario
    pace: Pace | None = None
    workers: int = 1

    @cached_property
    def modules(self) -> RealModel | EmulatedModel:
        """The modules of its layers."""
        scenario, training = self.scenario, self.scenario.training
        if scenario.compute == "paced":
            return EmulatedModel(scenario, self.pace)
        samples = self.workers * scenario.samples_per_worker // scenario.strategy.plan.microbatches
        return RealModel(
            scenario.model, training.seed, DTYPES[training.precision], samples if trains_by_layers(scenario) else None,
            scenario.tuning, has_documents(scenario),
        )  # fmt: skip

    @property
    def numbers(self) -> range:
        """Numbers of all layers."""
        return range(len(self.modules.wiring))

    @property
    def ties(self) -> list[Tie]:
        """Weights that layers share."""
        return self.modules.ties

    def build(self, numbers: Iterable[int]) -> list[nn.Module]:
        """The layers with these numbers and their initial parameters on the CPU."""
        return self.modules.build(numbers)

    def shapes(self) -> list[nn.Module]:
        """All layers in the training precision, for the sizes of their parameters: these have no values, unless the model is a
        user's, which is built as a whole."""
        # a user's module is built here, with its values
        numbers, dtype = self.numbers, DTYPES[self.scenario.training.precision]
        with torch.device("meta"):
            return [layer.to(dtype=dtype) for layer in self.build(numbers)]

    def graph(self, layers: Mapping[int, nn.Module]) -> LayerGraph:
        """Neighbouring layers as one module, prepared for the scenario's recomputation."""
        own = self.modules
        return LayerGraph(layers, own.wiring, prepare(self.scenario, layers), own.prelude, own.derived)

    def loss(self, outputs: Values, targets: Tensor) -> Tensor:
        """The mean loss over samples; of outputs in fp16 it is in fp32, as a scaled loss exceeds the range of fp16."""
        if is_padded(self.scenario) and isinstance(self.scenario.model, Transformer) and isinstance(outputs, Tensor):
            return mean_of_samples(_widened(outputs), targets)
        if isinstance(outputs, Tensor):
            return self.modules.loss(_widened(outputs), targets)
        return self.modules.loss(tuple(map(_widened, outputs)), targets)

    def optimizer(self, parameters: Iterable[nn.Parameter], orthogonalise: Orthogonalise = each_whole) -> torch.optim.Optimizer:
        """The scenario's optimizer over `parameters`, or that of the user's module. orthogonalise: see `build_optimizer`."""
        training = self.scenario.training
        if self.modules.own_optimizer is not None:
            return self.modules.own_optimizer(parameters)
        return build_optimizer(training.optimizer, parameters, training.learning_rate, training.state_bits, orthogonalise)

    def row_optimizer(self, tables: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of tables that workers divide, or of parts of them."""
        how = self.scenario.strategy.plan.tables
        assert how is not None, "tables are divided"
        return build_row_optimizer(how.optimizer, tables, self.scenario.training.learning_rate)

    def mark(self, number: int, layer: nn.Module) -> None:
        """Notes on the parameters of a layer what an optimizer needs to know of them."""
        if self.scenario.training.optimizer == "muon":
            mark_matrices(layer, job_of(self.scenario).layers[number])


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor
