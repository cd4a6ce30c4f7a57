"""Local SGD: workers take a period of steps alone, then an outer step applies what these changed, averaged over workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy import LocalSgd
from scaleproof.validator.strategy.base import Context, Trainer, WholeModel, apply_update, name_parameters
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.team import Team

# What takes the mean change for a gradient: with none the mean of the workers' parameters comes out, nesterov is DiLoCo's with
# its learning rate and momentum (arXiv 2311.08105, section 3.1).
OUTER: Final[Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "none": lambda held: torch.optim.SGD(held, lr=1.0),
    "nesterov": lambda held: torch.optim.SGD(held, lr=0.7, momentum=0.9, nesterov=True),
}


def create(context: Context, strategy: LocalSgd) -> Trainer:
    """The trainer of this rank's worker."""
    return PeriodTrainer(context, strategy)


class PeriodTrainer(WholeModel):
    """A worker. A step of a run is a period, over which its inner optimizer's state lasts on.

    Where averages overlap with the next period, what is applied after a period is the mean change of the one before it, in
    which the worker's own part is already that of this period (eager updates, arXiv 2502.12996): workers then differ by what
    they have not heard of yet.
    """

    def __init__(self, context: Context, strategy: LocalSgd) -> None:
        self.period, self.overlap = strategy.period, strategy.overlap
        super().__init__(context, context.rank)
        self.batches = replace(context, total_steps=context.total_steps * self.period).batches(context.rank)
        self.team = Team.everybody()
        self.collectives = Collectives(self.recorder, self.team)
        self.optimizer = context.optimizer(self.module.parameters())
        self.outer_parameters = nn.Parameter(parameters_to_vector(self.module.parameters()).detach().clone())
        self.outer = OUTER[strategy.outer]([self.outer_parameters])
        self.last_change = torch.zeros_like(self.outer_parameters)

    def step(self, index: int) -> None:
        """A period."""
        average = self.begin_average(self.last_change) if self.overlap else None
        for batch in self.batches[index * self.period : (index + 1) * self.period]:
            self.backward(self.forward(batch))
            self.update()
        change = parameters_to_vector(self.module.parameters()).detach() - self.outer_parameters.detach()
        with self.recorder.span(Phase.SYNCHRONISE):
            mean = (average or self.begin_average(change)).wait()
        with self.recorder.span(Phase.OPTIMIZER):
            self.apply(mean + (change - self.last_change) / self.team.size if self.overlap else mean)
        self.last_change = change

    def update(self) -> None:
        apply_update(self.recorder, self.optimizer)

    def note_loss(self, loss: Tensor, samples: int) -> None:
        """Of a period the mean over its steps."""
        super().note_loss(loss / self.period, samples)

    def begin_average(self, change: Tensor) -> Future[Tensor]:
        """Begins to average a period's change over the workers; the future has the mean."""
        mean = change / self.team.size
        if self.team.size == 1:
            done: Future[Tensor] = Future()
            done.set_result(mean)
            return done
        return self.collectives.begin_sum(mean)

    def apply(self, change: Tensor) -> None:
        """The outer step, from where the period began; the next period begins at what comes out."""
        self.outer_parameters.grad = change.neg()
        self.outer.step()
        with torch.no_grad():
            vector_to_parameters(self.outer_parameters.detach().clone(), self.module.parameters())

    def parameters(self) -> Mapping[str, Tensor]:
        """The mean over workers, where they differ; all of them must ask together."""
        held = name_parameters(self.layers)
        if not self.overlap:
            return held
        own = {name: value.detach() / self.team.size for name, value in held.items()}
        for value in own.values():
            dist.all_reduce(value)
        return own
