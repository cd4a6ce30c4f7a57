"""Local SGD: workers train independently for a period, then an outer step applies the average of their changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.utils import parameters_to_vector

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import LocalSgd
from scaleproof.validator.strategy.base import Context, Trainer, WholeModel, apply_update, name_parameters
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import views
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.master_copies import MasterOptimizer, updated_by

# Outer optimizers, whose gradient is the negative mean change: `none` yields the mean of the workers' parameters, `nesterov` is
# DiLoCo's with its learning rate and momentum (arXiv 2311.08105, section 3.1).
OUTER: Final[Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "none": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True),
}


def create(context: Context, strategy: LocalSgd) -> Trainer:
    """The trainer of this rank's worker."""
    return PeriodTrainer(context, strategy)


class PeriodTrainer(WholeModel):
    """A worker. A step of the run is a period; the inner optimizer's state is kept from one period to the next.

    With overlap the outer step after a period applies the mean change of the previous period, in which the worker's own part is
    already that of this period (eager updates, arXiv 2502.12996). Workers then differ by the changes that are under way.

    In fp16 the outer step acts on the copies in fp32 that inner steps update. Their changes are sent in fp16, in which they
    keep more digits than parameters would; a worker counts its own change as it was sent.
    """

    def __init__(self, context: Context, strategy: LocalSgd) -> None:
        self.period, self.overlap = strategy.period, strategy.overlap
        super().__init__(context, context.rank)
        self.batches = replace(context, total_steps=context.total_steps * self.period).batches(context.rank)
        self.team = Team.everybody()
        self.collectives = Collectives(self.recorder, self.team)
        self.optimizer = context.optimizer(self.module.parameters())
        self.outer_parameters = nn.Parameter(self.values().clone())
        self.outer = OUTER[strategy.outer]([self.outer_parameters])
        self.last_part = torch.zeros_like(self.outer_parameters, dtype=context.dtype)

    def step(self, index: int) -> None:
        """Trains for one period and takes the outer step."""
        average = self.begin_average(self.last_part) if self.overlap else None
        for batch in self.batches[index * self.period : (index + 1) * self.period]:
            self.backward(self.forward(batch))
            self.update()
        part = ((self.values() - self.outer_parameters.detach()) / self.team.size).to(self.context.dtype)
        with self.recorder.span(Phase.SYNCHRONISE):
            mean = (average or self.begin_average(part)).wait().to(self.outer_parameters)
        with self.recorder.span(Phase.OPTIMIZER):
            self.apply(mean + part - self.last_part if self.overlap else mean)
        self.last_part = part

    def update(self) -> None:
        """Applies the worker's own gradients."""
        apply_update(self.recorder, self.optimizer)

    def note_loss(self, loss: Tensor, samples: int) -> None:
        """Adds a step's part to the period's loss, which is the mean over its steps."""
        super().note_loss(loss / self.period, samples)

    def begin_average(self, part: Tensor) -> Future[Tensor]:
        """Starts to average a period's change over the workers; the future returns the mean. part: this worker's part of it."""
        if self.team.size == 1:
            done: Future[Tensor] = Future()
            done.set_result(part)
            return done
        return self.collectives.begin_sum(part.clone())

    def values(self) -> Tensor:
        """What inner steps update, parameters or copies of them, as one vector."""
        updated = updated_by(self.optimizer, self.module.parameters())
        return parameters_to_vector(updated).detach().to(self.context.device)

    def apply(self, change: Tensor) -> None:
        """Takes the outer step from the parameters at the period's start; the next period starts from the result."""
        self.outer_parameters.grad = change.neg()
        self.outer.step()
        parameters = list(self.module.parameters())
        values = views(self.outer_parameters.detach(), parameters)
        if isinstance(self.optimizer, MasterOptimizer):
            self.optimizer.load(values)
            return
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)

    def parameters(self) -> Mapping[str, Tensor]:
        """The mean over workers if they differ; to be called on all workers together."""
        parameters = name_parameters(self.layers)
        if not self.overlap:
            return parameters
        means = {name: value.detach() / self.team.size for name, value in parameters.items()}
        for value in means.values():
            dist.all_reduce(value)
        return means
