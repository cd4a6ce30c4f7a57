"""The whole model with its optimizer in one process, as rules of reference training use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor, nn

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import total_steps
from scaleproof.validator.strategy.base import name_parameters
from scaleproof.validator.train.data import Batch, share_of
from scaleproof.validator.train.layer_graph import LayerGraph
from scaleproof.validator.train.models.fine_tuning import trained_parameters
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.trained_model import TrainedModel

_ROUNDS: Final = ContextVar("whether rounding differs", default=False)


@dataclass(frozen=True)
class SingleProcess:
    """The scenario's model with its initial parameters at the training precision, and the scenario's optimizer.

    Of training in fp16 only the initial parameters are rounded.
    """

    scenario: Scenario
    model: TrainedModel
    layers: Mapping[int, nn.Module]
    module: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Builds the model and optimizer of a scenario in this process."""
        model = TrainedModel(scenario)
        modules = model.build(model.numbers)
        initial = DTYPES[scenario.training.precision]
        layers = {n: module.to(initial).to(_dtype(scenario)) for n, module in zip(model.numbers, modules, strict=True)}
        if _ROUNDS.get():
            _round_up(layers.values())
        whole = LayerGraph(layers, model.modules.wiring, {}, model.modules.prelude, model.modules.derived)
        return cls(scenario, model, layers, whole, model.optimizer(trained_parameters(whole)))

    def loss(self, part: Batch) -> Tensor:
        """The mean loss over samples."""
        return self.model.loss(self.module(part.inputs, **part.others), part.targets)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the training precision."""
        return _dtype(self.scenario)

    @property
    def steps(self) -> range:
        """The numbers of all steps from 0, warm-up steps first."""
        return range(total_steps(self.scenario))

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """The microbatches of all workers in a batch, so that activations of only one are kept at a time."""
        for worker in range(self.scenario.strategy.workers):
            yield from self.microbatches(batch, worker)

    def microbatches(self, batch: Batch, worker: int) -> Iterator[Batch]:
        """The microbatches of a worker in a batch."""
        share = share_of(self.scenario, worker)
        size = (share.stop - share.start) // self.scenario.strategy.microbatches
        for begin in range(share.start, share.stop, size):
            yield batch.part(slice(begin, begin + size))

    def update(self) -> None:
        """Applies the gradients and clears them."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def distinct_parameters(self) -> list[Tensor]:
        """Parameters of the model in order; those that layers share occur once."""
        return [parameter.detach() for parameter in self.module.parameters()]

    def parameters(self) -> dict[str, Tensor]:
        """Parameters of the model, by name."""
        return {name: value.detach() for name, value in name_parameters(self.layers).items()}


@contextmanager
def rounded() -> Iterator[None]:
    """A context in which rounding differs: models begin with the next larger numbers as parameters, and sums of rounded
    gradients have another order."""
    token = _ROUNDS.set(True)
    try:
        yield
    finally:
        _ROUNDS.reset(token)


def is_rounded() -> bool:
    """Whether this is in the context of `rounded`."""
    return _ROUNDS.get()


@torch.no_grad()
def _round_up(layers: Iterable[nn.Module]) -> None:
    for parameter in nn.ModuleList(layers).parameters():
        parameter.copy_(parameter.nextafter(torch.full_like(parameter, torch.inf)))


def _dtype(scenario: Scenario) -> torch.dtype:
    """The precision of the training; 64 bits for ranks that keep copies of parameters with more bits than they compute with."""
    precision = scenario.training.precision
    return torch.float64 if precision == "fp16" else DTYPES[precision]
