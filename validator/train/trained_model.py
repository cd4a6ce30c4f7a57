"""The model that a scenario's ranks train: real torch modules, or layers that emulate them, with their wiring and loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train import emulated_compute
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.layer_graph import LayerGraph, Values
from scaleproof.validator.train.models import models
from scaleproof.validator.train.models.transformer import cross_entropy
from scaleproof.validator.train.models.wiring import Tie, Wiring, wiring_of
from scaleproof.validator.train.recompute import prepare


@dataclass(frozen=True)
class TrainedModel:
    """A scenario's model. pace: durations of emulated compute; None to compute, or to emulate without waiting."""

    scenario: Scenario
    pace: Pace | None = None

    @property
    def is_emulated(self) -> bool:
        """Whether layers emulate those of the scenario."""
        return self.scenario.compute == "paced"

    @cached_property
    def wiring(self) -> Wiring:
        """What each layer reads."""
        if self.is_emulated:
            return wiring_of(self.scenario.model.build_layers())
        return models.family_of(self.scenario.model).wiring(self.scenario.model)

    @cached_property
    def ties(self) -> list[Tie]:
        """Weights that layers share."""
        model = self.scenario.model
        return emulated_compute.ties(self.scenario) if self.is_emulated else list(models.family_of(model).ties(model))

    @property
    def numbers(self) -> range:
        """Numbers of all layers."""
        return range(len(self.wiring))

    def build(self, numbers: Iterable[int]) -> list[nn.Module]:
        """The layers with these numbers and their initial parameters, in fp32 on the CPU."""
        if self.is_emulated:
            return emulated_compute.build(self.scenario, numbers, self.pace)
        return models.build(self.scenario.model, numbers, self.scenario.training.seed)

    def graph(self, layers: Mapping[int, nn.Module]) -> LayerGraph:
        """Neighbouring layers as one module, prepared for the scenario's recomputation."""
        return LayerGraph(layers, self.wiring, prepare(self.scenario, layers))

    def loss(self, outputs: Values, targets: Tensor) -> Tensor:
        """The mean loss over samples."""
        return (cross_entropy if self.is_emulated else models.family_of(self.scenario.model).loss)(outputs, targets)
