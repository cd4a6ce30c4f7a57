"""What every strategy's twin is: one rank's part in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from simulator.cluster.device import Optimizer
from simulator.model import Gpt, Mlp
from simulator.run import Phase
from simulator.scenario import Scenario
from validator import model
from validator.data import Batch, worker_batches
from validator.recorder import Recorder


@dataclass(frozen=True)
class Context:
    """What a rank needs to train. total_steps: with the warm-up steps."""

    scenario: Scenario
    rank: int
    device: torch.device
    recorder: Recorder
    total_steps: int

    @property
    def dtype(self) -> torch.dtype:
        return model.DTYPES[self.scenario.training.precision]

    def build(self, layers: Iterable[int]) -> dict[int, nn.Module]:
        """The layers of those numbers with their initial parameters, on this rank's device."""
        numbers = list(layers)
        spec = cast(Gpt | Mlp, self.scenario.model)
        modules = model.build(spec, numbers, self.scenario.training.seed)
        return {number: module.to(self.device, self.dtype) for number, module in zip(numbers, modules, strict=True)}

    def build_all(self) -> dict[int, nn.Module]:
        return self.build(range(len(self.scenario.model.build_layers())))

    def batches(self, worker: int) -> list[Batch]:
        """The batches of a worker, one per step."""
        return worker_batches(self.scenario, worker, range(self.total_steps), self.device, self.dtype)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The scenario's optimizer over `parameters`."""
        return build_optimizer(self.scenario.training.optimizer, parameters, self.scenario.training.learning_rate)


def build_optimizer(name: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer that scenarios call `name`."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate)
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9 if name == "momentum" else 0.0)


class Trainer(ABC):
    """One rank's part in training by some strategy."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.recorder = context.recorder

    @abstractmethod
    def step(self, index: int) -> None:
        """Trains on batch number `index`, noting every phase."""

    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters that this rank trains, as 'layer number.name'."""


class WholeModel(Trainer):
    """A worker that holds all layers: what it does with gradients makes the strategy."""

    def __init__(self, context: Context, worker: int) -> None:
        super().__init__(context)
        self.layers = context.build_all()
        self.module: nn.Module = nn.Sequential(*self.layers.values())
        self.batches = context.batches(worker)

    def step(self, index: int) -> None:
        self.backward(self.forward(self.batches[index]))
        self.update()

    def forward(self, batch: Batch) -> Tensor:
        """The loss of the worker's samples."""
        with self.recorder.span(Phase.FORWARD):
            return model.loss(self.module(batch.inputs), batch.targets)

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradients that the update is to apply in the parameters."""
        with self.recorder.span(Phase.BACKWARD):
            loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def update(self) -> None:
        """Applies the gradients."""

    def parameters(self) -> Mapping[str, Tensor]:
        return name_parameters(self.layers)


def name_parameters(layers: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Parameters of numbered layers as 'layer number.name'."""
    return {f"{number}.{name}": value for number, layer in layers.items() for name, value in layer.named_parameters()}


def apply_update(recorder: Recorder, optimizer: torch.optim.Optimizer, **labels: Any) -> None:
    """One optimizer step as a span, gradients dropped."""
    with recorder.span(Phase.OPTIMIZER, **labels):
        optimizer.step()
        optimizer.zero_grad()
