"""Averaging gradients over workers while the last microbatch's backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn
from torch.futures import Future

from validator.recorder import Recorder
from validator.strategy.buckets import BucketedAllreduce
from validator.strategy.team import Team


class EarlyAllreduce(BucketedAllreduce):
    """A bucket's sum begins once the last of a step's microbatches has left all of its gradients."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        recorder: Recorder,
        bucket_bytes: float,
        team: Team,
        stage: int,
        weight: float,
        microbatches: int,
    ) -> None:
        super().__init__(parameters, recorder, bucket_bytes, bucket_bytes, team, stage, weight)
        self._due = [len(bucket) * microbatches for bucket in self._buckets]
        self._missing = list(self._due)
        self._begun: dict[int, Future[Tensor]] = {}
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                hook = partial(self._note_gradient, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def average(self) -> None:
        super().average()
        self._begun.clear()
        self._missing = list(self._due)

    def _note_gradient(self, index: int, _: Tensor) -> None:
        self._missing[index] -= 1
        if not self._missing[index]:
            self._begun[index] = super()._launch(index)

    def _launch(self, index: int) -> Future[Tensor]:
        return self._begun[index]
