"""Averaging gradients over workers after the backward pass, bucket by bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from simulator.run import Phase, Stream
from validator.recorder import Recorder
from validator.strategy.team import Team


class Bucket(NamedTuple):
    """Gradients that are summed together. number: among a step's buckets. flat: all of them, weighted; gradients: views of it,
    each as its parameter is shaped; parameters: the numbers of these among all that are trained."""

    number: int
    flat: Tensor
    gradients: Sequence[Tensor]
    parameters: Sequence[int]


class Exchange(ABC):
    """How workers sum a bucket's gradients. All of them begin buckets in the same order."""

    @abstractmethod
    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Begins to sum a bucket in place; the future has its `flat` once the sum is there."""


class Allreduce(Exchange):
    """By one allreduce of the library's."""

    def __init__(self, recorder: Recorder, team: Team, stage: int = -1) -> None:
        self._recorder, self._team, self._stage = recorder, team, stage

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        summed = allreduce(bucket.flat, self._recorder, self._team, bucket.number, self._stage)
        return summed.then(lambda done: done.value()[0])


class BucketedAllreduce:
    """Buckets of gradients, filled in the order in which the backward pass leaves them.

    A bucket closes once it holds its limit or more; the first has a limit of its own. team: whose ranks average. weight: what
    this rank's gradients count for in the sum; as much as the others', if None. exchange: how buckets are summed; by allreduce,
    if None.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        recorder: Recorder,
        first_bucket_bytes: float,
        bucket_bytes: float,
        team: Team,
        stage: int = -1,
        weight: float | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        held = list(parameters)
        self._recorder = recorder
        self._team = team
        self._weight = 1 / team.size if weight is None else weight
        self._exchange = exchange or Allreduce(recorder, team, stage)
        self._stage = stage
        self._buckets = fill(held, first_bucket_bytes, bucket_bytes)
        number = {id(parameter): place for place, parameter in enumerate(held)}
        self._summed = [_bucket(index, filled, number) for index, filled in enumerate(self._buckets)]

    def average(self) -> None:
        """Replaces each parameter's gradient by the mean over the ranks. Spans: the whole, and each bucket beside it."""
        with self._recorder.span(Phase.SYNCHRONISE, stage=self._stage):
            sums = [self._launch(index) for index in range(len(self._buckets))]
            for parameters, bucket, summed in zip(self._buckets, self._summed, sums, strict=True):
                summed.wait()
                for parameter, gradient in zip(parameters, bucket.gradients, strict=True):
                    parameter.grad = gradient

    def _launch(self, index: int) -> Future[Tensor]:
        bucket = self._summed[index]
        gradients = [parameter.grad.flatten() for parameter in self._buckets[index] if parameter.grad is not None]
        torch.cat(gradients, out=bucket.flat).mul_(self._weight)
        return self._exchange.begin(bucket)


def _bucket(index: int, parameters: Sequence[nn.Parameter], number: dict[int, int]) -> Bucket:
    sizes = [parameter.numel() for parameter in parameters]
    flat = torch.empty(sum(sizes), device=parameters[0].device, dtype=parameters[0].dtype)
    gradients = [part.view_as(parameter) for part, parameter in zip(torch.split(flat, sizes), parameters, strict=True)]
    return Bucket(index, flat, gradients, [number[id(parameter)] for parameter in parameters])


def allreduce(flat: Tensor, recorder: Recorder, team: Team, match: int, stage: int = -1) -> Future[list[Tensor]]:
    """Begins to sum `flat` in place over the team; its span is noted when the sum is there, which the future tells."""
    begin = recorder.now()
    work = dist.all_reduce(flat, group=team.group, async_op=True)

    def note(summed: Future[list[Tensor]]) -> list[Tensor]:
        recorder.add(
            Phase.SYNCHRONISE,
            begin,
            recorder.now(),
            stream=Stream.COMMUNICATION,
            stage=stage,
            size_bytes=float(flat.nbytes),
            group=team.number,
            match=match,
        )
        return summed.value()

    summed: Future[list[Tensor]] = work.get_future().then(note)
    return summed


def fill(parameters: Sequence[nn.Parameter], first_bucket_bytes: float, bucket_bytes: float) -> list[list[nn.Parameter]]:
    """Parameters in reverse order, cut into buckets."""
    buckets: list[list[nn.Parameter]] = [[]]
    filled_bytes, limit_bytes = 0.0, first_bucket_bytes
    for parameter in reversed(parameters):
        buckets[-1].append(parameter)
        filled_bytes += parameter.numel() * parameter.element_size()
        if filled_bytes >= limit_bytes:
            buckets.append([])
            filled_bytes, limit_bytes = 0.0, bucket_bytes
    return [bucket for bucket in buckets if bucket]
