"""The whole model with its optimizer in one process, as rules of reference training use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Final, Self

import torch
from torch import Tensor, nn

from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import place
from scaleproof.simulator.parallelism.replicas import compared_workers
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import total_steps
from scaleproof.validator.strategy.base import name_parameters
from scaleproof.validator.train.data import Batch, joined, share_of
from scaleproof.validator.train.gradient_clipping import LARGEST_NORM
from scaleproof.validator.train.layer_graph import LayerGraph
from scaleproof.validator.train.models.fine_tuning import trained_parameters
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.parameter_average import ParameterAverage
from scaleproof.validator.train.trained_model import TrainedModel

_ROUNDS: Final = ContextVar("whether rounding differs", default=False)


@dataclass(frozen=True)
class SingleProcess:
    """The scenario's model with its initial parameters at the training precision, and the scenario's optimizer.

    Of training in fp16 only the initial parameters are rounded. delayed: gradients of the previous step, where updates are
    delayed. average: moving average of the trained parameters, None without one. pieces: by trained parameter, views that the
    optimizer updates one by one, itself if none. row_optimizer: of tables that workers divide, None without any.
    """

    scenario: Scenario
    model: TrainedModel
    layers: Mapping[int, nn.Module]
    module: nn.Module
    optimizer: torch.optim.Optimizer
    pieces: Sequence[Sequence[nn.Parameter]]
    delayed: list[Tensor | None] = field(default_factory=list)
    average: ParameterAverage | None = None
    row_optimizer: torch.optim.Optimizer | None = None

    @classmethod
    def of(cls, scenario: Scenario, bounds: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Self:
        """Builds the model and optimizer of a scenario in this process. bounds: by parameter, the elements at which it is
        divided into pieces that the optimizer updates; without any it is whole."""
        model = TrainedModel(scenario, workers=compared_workers(scenario.model, scenario.strategy))
        modules = model.build(model.numbers)
        initial = DTYPES[scenario.training.precision]
        layers = {n: module.to(initial).to(_dtype(scenario)) for n, module in zip(model.numbers, modules, strict=True)}
        if _ROUNDS.get():
            _round_up(layers.values())
        for number, layer in layers.items():
            model.mark(number, layer)
        whole = LayerGraph(layers, model.modules.wiring, {}, model.modules.prelude, model.modules.derived)
        names = {parameter: name for name, parameter in name_parameters(layers).items()}
        trained = trained_parameters(whole)
        pieces = [_pieces(parameter, bounds.get(names[parameter], ())) for parameter in trained]
        ema = scenario.training.ema
        average = None if ema is None else ParameterAverage(trained, DTYPES[ema])
        divided = {f"0.lookups.{number}.weight" for number in _divided_tables(scenario)}
        tables = [parameter for parameter in trained if names[parameter] in divided]
        others = [own for parameter, own in zip(trained, pieces, strict=True) if names[parameter] not in divided]
        rows = model.row_optimizer(tables) if tables else None
        return cls(scenario, model, layers, whole, model.optimizer(chain(*others)), pieces, average=average, row_optimizer=rows)

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
        """The microbatches of all workers in a batch, so that activations of only one are kept at a time; those that pass
        together are one where a loss compares the samples of all workers."""
        workers = [self.microbatches(batch, worker) for worker in range(self.scenario.strategy.workers)]
        if compared_workers(self.scenario.model, self.scenario.strategy) > 1:
            yield from map(joined, zip(*workers, strict=True))
        else:
            yield from chain.from_iterable(workers)

    def microbatches(self, batch: Batch, worker: int) -> Iterator[Batch]:
        """The microbatches of a worker in a batch."""
        share = share_of(self.scenario, worker)
        size = (share.stop - share.start) // self.scenario.strategy.microbatches
        for begin in range(share.start, share.stop, size):
            yield batch.part(slice(begin, begin + size))

    @property
    def trained(self) -> list[nn.Parameter]:
        """The trained parameters in order."""
        return trained_parameters(self.module)

    def update(self) -> None:
        """Applies the gradients and clears them; where updates are delayed, those of the previous step."""
        training = self.scenario.training
        if training.clip_gradients:
            nn.utils.clip_grad_norm_(self.trained, LARGEST_NORM)
        if training.delay_update:
            computed = [parameter.grad for parameter in self.trained]
            before, self.delayed[:] = [*self.delayed], computed
            if before:
                self._apply(before)
        else:
            self._apply([parameter.grad for parameter in self.trained])
        self.module.zero_grad()

    def finish(self) -> None:
        """Applies gradients that are left, and gives parameters with an average that."""
        if self.delayed:
            self._apply(self.delayed)
        if self.average is not None:
            self.average.write()

    def _apply(self, gradients: Iterable[Tensor | None]) -> None:
        for pieces, gradient in zip(self.pieces, gradients, strict=True):
            if len(pieces) == 1:
                pieces[0].grad = gradient
            elif gradient is not None:
                for piece, own in zip(pieces, torch.split(gradient.flatten(), [len(piece) for piece in pieces]), strict=True):
                    piece.grad = own
        self.optimizer.step()
        if self.row_optimizer is not None:
            self.row_optimizer.step()
        if self.average is not None:
            self.average.add()

    def distinct_parameters(self) -> list[Tensor]:
        """Parameters of the model in order; those that layers share occur once."""
        return [parameter.detach() for parameter in self.module.parameters()]

    def parameters(self) -> dict[str, Tensor]:
        """Parameters of the model, by name."""
        return {name: value.detach() for name, value in name_parameters(self.layers).items()}


def _divided_tables(scenario: Scenario) -> set[int]:
    """Numbers of the tables that workers divide."""
    plan, model = scenario.strategy.plan, scenario.model
    if plan.tables is None or plan.workers == 1 or not isinstance(model, Recommender):
        return set()
    return {part.table for part in place(model.tables, plan.tables, plan.workers)}


def _pieces(parameter: nn.Parameter, bounds: Sequence[int]) -> list[nn.Parameter]:
    """Views of a parameter between the elements `bounds`; the parameter itself if there are none inside it."""
    inside = sorted({*bounds} - {0, parameter.numel()})
    if not inside:
        return [parameter]
    flat, edges = parameter.detach().view(-1), [0, *inside, parameter.numel()]
    return [nn.Parameter(flat[begin:end]) for begin, end in pairwise(edges)]


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
