"""Gather and average: worker 0 collects all gradients, averages and applies them, and sends parameters to the others."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import GatherAverage
from scaleproof.validator.strategy.base import Context, Trainer, WholeModel
from scaleproof.validator.strategy.layout.flat import gradients, pack, replace_values, views
from scaleproof.validator.strategy.layout.messages import receive, send, wait_all
from scaleproof.validator.train.master_copies import updated_by

_MAIN: Final = 0
# Numbers of the two messages of a step between a worker and worker 0.
_GRADIENTS: Final = 0
_PARAMETERS: Final = 1


def create(context: Context, strategy: GatherAverage) -> Trainer:
    """The trainer of this rank: worker 0 or one of the others."""
    return MainWorker(context, strategy.workers) if context.rank == _MAIN else OtherWorker(context)


class MainWorker(WholeModel):
    """Worker 0: trains on samples of its own, and receives gradients meanwhile."""

    def __init__(self, context: Context, workers: int) -> None:
        super().__init__(context, context.rank)
        self.others = range(1, workers)
        self.workers = workers
        self.received = [torch.empty_like(pack(self.module.parameters())) for _ in self.others]
        self.optimizer = context.optimizer(self.module.parameters())

    def step(self, index: int) -> None:
        """Trains on a batch, with receives of the others' gradients posted before."""
        self.posted = self.recorder.now()
        self.arriving = [receive(flat, worker) for worker, flat in zip(self.others, self.received, strict=True)]
        super().step(index)

    def update(self) -> None:
        """Waits for all gradients, applies their mean, and sends the parameters."""
        for worker, arriving, flat in zip(self.others, self.arriving, self.received, strict=True):
            labels = _labels(worker, _GRADIENTS, flat)
            with self.recorder.span(Phase.RECEIVE, start_s=self.posted, **labels):
                arriving.wait()
        with self.recorder.span(Phase.OPTIMIZER):
            self.average()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.send_parameters()

    def average(self) -> None:
        """Gives what is updated the mean of the gradients over all workers, summed in rank order."""
        parameters = list(self.module.parameters())
        updated = updated_by(self.optimizer, parameters)
        total = pack(gradients(parameters)).to(self.context.updated_dtype)
        for flat in self.received:
            total.add_(flat)
        for parameter, one, part in zip(parameters, updated, views(total.div_(self.workers), parameters), strict=True):
            parameter.grad = None
            one.grad = part.to(one)

    def send_parameters(self) -> None:
        """Sends the updated parameters to all other workers."""
        flat = pack(self.module.parameters())
        sent = self.recorder.now()
        for worker, leaving in [(worker, send(flat, worker)) for worker in self.others]:
            with self.recorder.span(Phase.SEND, start_s=sent, **_labels(worker, _PARAMETERS, flat)):
                leaving.wait()

    def complete(self) -> None:
        """Gives the parameters the values of the copies that were updated, and sends them where they are more precise."""
        super().complete()
        if self.context.has_wider_copies:
            flat = pack(self.module.parameters())
            wait_all([send(flat, worker) for worker in self.others])


class OtherWorker(WholeModel):
    """A worker that sends its gradients to worker 0 and receives the updated parameters."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.rank)
        self.received = torch.empty_like(pack(self.module.parameters()))

    def update(self) -> None:
        """Sends the gradients and waits for the parameters."""
        parameters = list(self.module.parameters())
        flat = pack(gradients(parameters))
        sent = self.recorder.now()
        with self.recorder.span(Phase.SEND, start_s=sent, **_labels(_MAIN, _GRADIENTS, flat)):
            send(flat, _MAIN).wait()
        with self.recorder.span(Phase.SYNCHRONISE, **_labels(_MAIN, _PARAMETERS, flat)):
            receive(self.received, _MAIN).wait()
            with torch.no_grad():
                for parameter, part in zip(parameters, views(self.received, parameters), strict=True):
                    parameter.copy_(part)
                    parameter.grad = None

    def complete(self) -> None:
        """Receives the values of the copies that worker 0 has updated, where they are more precise than parameters."""
        super().complete()
        if self.context.has_wider_copies:
            whole = self.received.to(self.context.updated_dtype)
            receive(whole, _MAIN).wait()
            parameters = list(self.module.parameters())
            replace_values(parameters, views(whole, parameters))


def _labels(peer: int, match: int, flat: Tensor) -> dict[str, Any]:
    return {"peer": peer, "match": match, "size_bytes": float(flat.nbytes)}
