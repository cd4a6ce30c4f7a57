"""Averaging gradients over workers after the backward pass, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.run import Phase, Stream
from validator.recorder import Recorder
from validator.strategy.team import Team


class BucketedAllreduce:
    """Buckets of gradients, filled in the order in which the backward pass leaves them, summed by allreduce.

    A bucket closes once it holds its limit or more; the first has a limit of its own. team: whose ranks average. weight: what
    this rank's gradients count for in the sum; as much as the others', if None.
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
    ) -> None:
        self._recorder = recorder
        self._team = team
        self._weight = 1 / team.size if weight is None else weight
        self._stage = stage
        self._buckets = fill(list(parameters), first_bucket_bytes, bucket_bytes)
        self._flat = [
            torch.empty(sum(p.numel() for p in bucket), device=bucket[0].device, dtype=bucket[0].dtype)
            for bucket in self._buckets
        ]

    def average(self) -> None:
        """Replaces each parameter's gradient by the mean over the ranks. Spans: the whole, and each bucket beside it."""
        with self._recorder.span(Phase.SYNCHRONISE, stage=self._stage):
            sums = [self._launch(index) for index in range(len(self._buckets))]
            for bucket, flat, summed in zip(self._buckets, self._flat, sums, strict=True):
                summed.wait()
                for parameter, part in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                    parameter.grad = part.view_as(parameter)

    def _launch(self, index: int) -> torch.futures.Future[list[Tensor]]:
        gradients = [parameter.grad.flatten() for parameter in self._buckets[index] if parameter.grad is not None]
        flat = torch.cat(gradients, out=self._flat[index]).mul_(self._weight)
        return allreduce(flat, self._recorder, self._team, index, self._stage)


def allreduce(flat: Tensor, recorder: Recorder, team: Team, match: int, stage: int = -1) -> torch.futures.Future[list[Tensor]]:
    """Begins to sum `flat` in place over the team; its span is noted when the sum is there, which the future tells."""
    begin_s = recorder.now()
    work = dist.all_reduce(flat, group=team.group, async_op=True)

    def note(summed: torch.futures.Future[list[Tensor]]) -> list[Tensor]:
        size_bytes = float(flat.numel() * flat.element_size())
        recorder.add(
            Phase.SYNCHRONISE,
            begin_s,
            recorder.now(),
            stream=Stream.COMMUNICATION,
            stage=stage,
            size_bytes=size_bytes,
            group=team.number,
            match=match,
        )
        return summed.value()

    summed: torch.futures.Future[list[Tensor]] = work.get_future().then(note)
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
