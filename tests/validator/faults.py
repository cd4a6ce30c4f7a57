"""Faulty training functions that ranks run in tests; a separate module so that ranks can import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.pipelining import PipelineStage

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.clock_sync import Alignment
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.record import provenance
from scaleproof.validator.strategy import base
from scaleproof.validator.strategy.data_parallel.buckets import BucketedAllreduce
from scaleproof.validator.train.trained_model import TrainedModel


def add_ranks(extra: int) -> list[float]:
    numbers = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(numbers)
    return [*numbers.tolist(), extra]


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("the weights are gone\nand more lines of it")
    dist.barrier()


def leave_early(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(0)
    dist.barrier()


def sleep_for_ever() -> None:
    time.sleep(3600)


def train_without_averaging(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Every worker keeps its own gradients."""
    BucketedAllreduce.average = lambda self: None  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def begin_with_a_large_scale(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Nothing is wrong, but gradients are infinite until the scale of losses has been halved a few times."""
    base.ShardedGradScaler = partial(ShardedGradScaler, init_scale=2.0**24)  # type: ignore[assignment,misc]
    return train_here(scenario, parameters_folder)


def train_with_sums(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Gradients are summed over the workers, not averaged."""
    average = BucketedAllreduce.average

    def summed(self: BucketedAllreduce) -> None:
        average(self)
        for parameter in self._buckets[0]:
            assert parameter.grad is not None
            parameter.grad.mul_(scenario.strategy.workers)

    BucketedAllreduce.average = summed  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def die_in_backward_of_step_4(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Kills the last rank in this pass."""
    backward = PipelineStage.backward_one_chunk

    def deadly(self: Any, *args: Any, **kwargs: Any) -> None:
        _at(here().ranks - 1, 4, lambda: os.kill(os.getpid(), signal.SIGKILL))
        backward(self, *args, **kwargs)

    PipelineStage.backward_one_chunk = deadly  # type: ignore[method-assign]
    return train_here(scenario, parameters_folder)


def hang_in_forward_of_step_2(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """Makes rank 1 hang in this pass."""
    loss = TrainedModel.loss

    def endless(self: TrainedModel, outputs: Tensor, targets: Tensor) -> Tensor:
        _at(1, 2, lambda: time.sleep(3600))
        return loss(self, outputs, targets)

    TrainedModel.loss = endless  # type: ignore[method-assign,assignment]
    return train_here(scenario, parameters_folder)


def _at(rank: int, step: int, do: Callable[[], None]) -> None:
    if here().rank == rank and here().status.activity.step == step:
        do()


def clock_correction(pretend: bool) -> dict[str, float] | None:
    """To rank 0's clock; where it pretends, the last two ranks say that they are on another machine."""
    elsewhere = pretend and here().rank >= here().ranks - 2
    alignment = Alignment("elsewhere" if elsewhere else "here")
    time.sleep(0.2)
    correction = alignment.finish()
    return None if correction is None else asdict(correction)


def train_on_two_machines(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """The last rank is on a machine whose clock is two hours ahead, and gains 100 ppm."""
    reported = time.perf_counter
    if here().rank == here().ranks - 1:
        provenance.machine = lambda: "elsewhere"
        time.perf_counter = lambda: reported() * (1 + 100e-6) + 7200.0
    return train_here(scenario, parameters_folder)
