"""Averages gradients over workers in buckets, after the backward pass or overlapped with that of the last microbatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.futures import Future

from scaleproof.simulator.common.buckets import bucket_bounds
from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import pack, views


class Bucket(NamedTuple):
    """Gradients that are summed together. flat: all of them, weighted; gradients: views of it with the parameters' shapes;
    parameters: their numbers among all trained parameters."""

    flat: Tensor
    gradients: Sequence[Tensor]
    parameters: Sequence[int]


class BucketSum(ABC):
    """A way to sum a bucket's gradients over workers. All workers start buckets in the same order."""

    @abstractmethod
    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Starts to sum a bucket in place; the future returns its `flat` once the sum is complete."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends threads that it has started; no bucket can be summed after that."""


class Allreduce(BucketSum):
    """Sums a bucket by one allreduce of the library."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Starts one allreduce of the bucket's gradients."""
        return self._collectives.begin_sum(bucket.flat)


class BucketedAllreduce:
    """Buckets of gradients, filled in the order in which the backward pass computes them.

    A bucket closes once its size reaches its limit; the first has a limit of its own. weight: factor of this rank's gradients
    in the sum.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        recorder: Recorder,
        limits_bytes: tuple[float, float],
        weight: float,
        bucket_sum: BucketSum,
        accumulator: Accumulator,
        stage: int = -1,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """limits_bytes: of the first bucket, and of the others. accumulator: of the gradients of a step's microbatches.
        numbers: of the parameters in the whole model, 0, 1, … if None."""
        trained = list(parameters)
        self._accumulator, precision = accumulator, accumulator.precision
        self._recorder = recorder
        self._weight, self._bucket_sum, self._stage = weight, bucket_sum, stage
        narrower = precision.computed.itemsize / precision.reduced.itemsize
        self._buckets = fill(trained, *(limit * narrower for limit in limits_bytes))
        number = dict(zip(map(id, trained), range(len(trained)) if numbers is None else numbers, strict=True))
        self._summed = [_bucket(filled, number, precision.reduced) for filled in self._buckets]

    def average(self) -> None:
        """Replaces each parameter's gradient by the mean over the ranks. Records a span of the whole and of each bucket."""
        with self._recorder.span(Phase.SYNCHRONISE, stage=self._stage):
            sums = [self._launch(index) for index in range(len(self._buckets))]
            for parameters, bucket, summed in zip(self._buckets, self._summed, sums, strict=True):
                summed.wait()
                for parameter, gradient in zip(parameters, bucket.gradients, strict=True):
                    parameter.grad = gradient.to(parameter.dtype)

    def close(self) -> None:
        """Ends the way in which buckets are summed."""
        self._bucket_sum.close()

    def _launch(self, index: int) -> Future[Tensor]:
        bucket = self._summed[index]
        sums = self._accumulator.take(self._buckets[index])
        torch.cat([gradient.flatten() for gradient in sums], out=bucket.flat).mul_(self._weight)
        return self._bucket_sum.begin(bucket)


class EarlyAllreduce(BucketedAllreduce):
    """Starts to sum a bucket once the backward pass of the last microbatch has computed all of its gradients."""

    def __init__(self, *args: Any, microbatches: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begun: dict[int, Future[Tensor]] = {}
        self._countdown = Countdown(self._buckets, microbatches, self._begin)

    def average(self) -> None:
        """Waits for the sums that have begun."""
        super().average()
        self._begun.clear()

    def close(self) -> None:
        """Removes the hooks of parameters."""
        self._countdown.close()
        super().close()

    def _begin(self, index: int) -> None:
        self._begun[index] = super()._launch(index)

    def _launch(self, index: int) -> Future[Tensor]:
        return self._begun[index]


class Countdown:
    """Calls a function with a bucket's number each time that all of its gradients have been computed `passes` times."""

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], passes: int, call: Callable[[int], object]) -> None:
        self._due = [len(bucket) * passes for bucket in buckets]
        self._missing = list(self._due)
        self._call = call
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._note_gradient, index))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(buckets)
            for parameter in bucket
        ]

    def close(self) -> None:
        """Removes the hooks of parameters."""
        for hook in self._hooks:
            hook.remove()

    def _note_gradient(self, index: int, _: Tensor) -> None:
        self._missing[index] -= 1
        if not self._missing[index]:
            self._missing[index] = self._due[index]
            self._call(index)


def _bucket(parameters: Sequence[nn.Parameter], number: dict[int, int], dtype: torch.dtype) -> Bucket:
    flat = torch.empty_like(pack(parameters), dtype=dtype)
    return Bucket(flat, views(flat, parameters), [number[id(parameter)] for parameter in parameters])


def fill(
    parameters: Sequence[nn.Parameter],
    first_bucket_bytes: float,
    bucket_bytes: float,
    *,
    sizes_bytes: Sequence[int] | None = None,
) -> list[list[nn.Parameter]]:
    """The parameters in reverse order, cut into buckets that close once they reach their limit. sizes_bytes: what is sent of
    each; the whole if None."""
    backward = list(reversed(parameters))
    sent_bytes = [parameter.nbytes for parameter in parameters] if sizes_bytes is None else sizes_bytes
    filled_bytes = list(accumulate(reversed(sent_bytes), initial=0))
    bounds = bucket_bounds(filled_bytes, 0, len(backward), first_bucket_bytes, bucket_bytes)
    return [backward[begin:end] for begin, end in pairwise(bounds)]
