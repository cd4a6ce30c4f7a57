"""Faults of data-parallel training that verification must detect; a separate module so that ranks can import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy import base
from scaleproof.validator.strategy.data_parallel import (
    compression,
    gather_average,
    local_sgd,
    microbatched,
    ring_allreduce,
    trainer,
)
from scaleproof.validator.strategy.layout.collectives import Collectives


def weights_workers_equally(*arguments: Any) -> Mapping[str, Any]:
    """Averages gradients of unequal shares with equal weights."""
    trainer.weight_of = lambda context: 1 / context.scenario.strategy.workers
    return train_here(*arguments)


def averages_no_microbatch_but_the_last(*arguments: Any) -> Mapping[str, Any]:
    """Gradients of earlier microbatches are dropped."""
    train_on = microbatched.MicrobatchedReplica.train_on

    def forgetful(self: Any, part: Any, microbatch: int) -> None:
        self.optimizer.zero_grad()
        train_on(self, part, microbatch)

    microbatched.MicrobatchedReplica.train_on = forgetful  # type: ignore[method-assign]
    return train_here(*arguments)


def forgets_what_was_not_sent(*arguments: Any) -> Mapping[str, Any]:
    """There is no error feedback."""
    for method in (compression.Factors, compression.Largest):
        _forgetful(method)
    return train_here(*arguments)


def _forgetful(method: Any) -> None:
    sum_bucket = method.sum

    def forgetful(self: Any, bucket: Any, collectives: Any) -> None:
        self._rest.clear()
        sum_bucket(self, bucket, collectives)

    method.sum = forgetful


def begins_every_iteration_anew(*arguments: Any) -> Mapping[str, Any]:
    """There is no warm start."""
    sum_bucket = compression.Factors.sum

    def fresh(self: Any, bucket: Any, collectives: Any) -> None:
        self._right.clear()
        sum_bucket(self, bucket, collectives)

    compression.Factors.sum = fresh  # type: ignore[method-assign]
    return train_here(*arguments)


def sums_and_does_not_divide(*arguments: Any) -> Mapping[str, Any]:
    """What workers put in is not weighted."""
    trainer.weight_of = lambda context: 1.0
    return train_here(*arguments)


def leaves_the_last_round_out(*arguments: Any) -> Mapping[str, Any]:
    """A ring's last message, with which a chunk is complete everywhere, is not taken over."""
    take_turn = ring_allreduce.Ring.take_turn

    def incomplete(self: Any, leaving: Tensor, arriving: Tensor) -> None:
        last = (self._count + 1) % (2 * self.team.size - 1) == 0
        take_turn(self, leaving, torch.empty_like(arriving) if last else arriving)

    ring_allreduce.Ring.take_turn = incomplete  # type: ignore[method-assign]
    return train_here(*arguments)


def averages_after_every_step(*arguments: Any) -> Mapping[str, Any]:
    """Workers average their parameters within a period, too."""
    update = local_sgd.PeriodTrainer.update

    def eager(self: Any) -> None:
        update(self)
        for parameter in self.module.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data.div_(self.team.size)

    local_sgd.PeriodTrainer.update = eager  # type: ignore[method-assign]
    return train_here(*arguments)


def forgets_the_outer_momentum(*arguments: Any) -> Mapping[str, Any]:
    """Every outer step is the first."""
    apply = local_sgd.PeriodTrainer.apply

    def first(self: Any, change: Tensor) -> None:
        self.outer.state.clear()
        apply(self, change)

    local_sgd.PeriodTrainer.apply = first  # type: ignore[method-assign]
    return train_here(*arguments)


def applies_the_last_average_twice(*arguments: Any) -> Mapping[str, Any]:
    """A worker does not replace its own part of an average that comes late."""
    apply = local_sgd.PeriodTrainer.apply

    def twice(self: Any, change: Tensor) -> None:
        apply(self, change + self.last_part)

    local_sgd.PeriodTrainer.apply = twice  # type: ignore[method-assign]
    return train_here(*arguments)


def begins_with_a_large_scale_on_a_worker(*arguments: Any) -> Mapping[str, Any]:
    """Nothing is wrong, but worker 1 leaves steps out until it has halved its scale of losses a few times."""
    if here().rank == 1:
        base.GradScaler = partial(GradScaler, init_scale=2.0**24)  # type: ignore[assignment,misc]
    return train_here(*arguments)


def leaves_the_last_worker_out(*arguments: Any) -> Mapping[str, Any]:
    """The main worker does not add its gradients."""
    average = gather_average.MainWorker.average

    def partial(self: Any) -> None:
        self.received[-1].zero_()
        average(self)

    gather_average.MainWorker.average = partial  # type: ignore[method-assign]
    return train_here(*arguments)


def keeps_old_weights(*arguments: Any) -> Mapping[str, Any]:
    """The last rank's stage applies no update in odd steps."""
    step = torch.optim.SGD.step

    def stale(self: Any, *given: Any) -> Any:
        if here().rank == here().ranks - 1 and here().status.activity.step % 2:
            return None
        return step(self, *given)

    torch.optim.SGD.step = stale  # type: ignore[assignment, method-assign]
    return train_here(*arguments)


def dies_in_an_exchange(*arguments: Any) -> Mapping[str, Any]:
    """The last rank is killed while its exchange is under way."""
    sum_flat = Collectives.sum

    def deadly(self: Any, flat: Tensor) -> None:
        if here().rank == here().ranks - 1 and here().status.activity.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        sum_flat(self, flat)

    Collectives.sum = deadly  # type: ignore[method-assign]
    return train_here(*arguments)
