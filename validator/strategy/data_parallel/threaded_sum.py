"""Sums that need more than one collective: a thread makes them, one bucket after the other, while the rank computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.futures import Future

from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.buckets import Allreduce, Bucket, BucketSum
from scaleproof.validator.strategy.data_parallel.compression import SumMethod, method_of
from scaleproof.validator.strategy.data_parallel.ring_allreduce import Ring
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.streams import own_stream
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.host_link import HostLink

# Algorithms of an allreduce that are implemented here; None is the library's choice.
ALGORITHMS: Final[dict[str | None, type[Collectives]]] = {None: Collectives, "ring": Ring}

# A thread that has nothing left to do ends at once.
_JOIN_S: Final = 0.5


def bucket_sum_of(context: Context, team: Team, stage: int = -1, thread: SumThread | None = None) -> BucketSum:
    """The way in which the scenario's strategy sums its buckets over the team. thread: a new one if None and it needs one."""
    plan, recorder = context.scenario.strategy.plan, context.recorder
    if plan.compression is None and plan.algorithm is None:
        return sent(context, Allreduce(Collectives(recorder, team, stage)))
    method = method_of(plan.compression, paced=context.pace is not None)
    collectives = ALGORITHMS[plan.algorithm](recorder, team, stage)
    return sent(context, ThreadedSum(thread or SumThread(context.device), method, collectives))


def sent(context: Context, bucket_sum: BucketSum, parts: int = 1) -> BucketSum:
    """The way in which buckets are summed; over an emulated link, a rank then sends the gradients to its host. parts: into
    which ranks divide a bucket, of which each sends one."""
    return bucket_sum if context.host_link is None else SentSum(bucket_sum, context.host_link, parts)


class SentSum(BucketSum):
    """Sums buckets, and sends one of equal parts of each to the host as soon as it is summed."""

    def __init__(self, inner: BucketSum, link: HostLink, parts: int) -> None:
        self._inner, self._link, self._parts = inner, link, parts

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Starts to sum a bucket; its part is sent after that."""

        def send(summed: Future[Tensor]) -> Tensor:
            self._link.send(bucket.flat.numel() // self._parts)
            return summed.value()

        sending: Future[Tensor] = self._inner.begin(bucket).then(send)
        return sending

    def close(self) -> None:
        """Ends the way in which buckets are summed."""
        self._inner.close()


class SumThread:
    """A thread that makes the sums of buckets one after the other, in the order in which they begin on all ranks."""

    def __init__(self, device: torch.device) -> None:
        self._stream = own_stream(device)
        self._devices: list[int | str | torch.device] = [device] if self._stream else []
        self._begun: queue.SimpleQueue[tuple[Callable[[], Tensor], Any, Future[Tensor]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bucket sums", daemon=True)
        self._thread.start()

    def begin(self, make: Callable[[], Tensor]) -> Future[Tensor]:
        """Queues the function that makes a sum; the future returns its result."""
        filled = torch.cuda.current_stream().record_event() if self._stream else None
        future: Future[Tensor] = Future(devices=self._devices)
        self._begun.put((make, filled, future))
        return future

    def close(self) -> None:
        """Ends the thread after the sums under way; does not wait for sums that never complete."""
        self._begun.put(None)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            while (begun := self._begun.get()) is not None:
                make, filled, future = begun
                if self._stream is not None:
                    self._stream.wait_event(filled)
                try:
                    result = make()
                except Exception as error:
                    future.set_exception(error)  # type: ignore[arg-type]
                else:
                    future.set_result(result)


class ThreadedSum(BucketSum):
    """Sums buckets in a thread, by a method that may need several collectives."""

    def __init__(self, thread: SumThread, method: SumMethod, collectives: Collectives) -> None:
        self._thread, self._method, self._collectives = thread, method, collectives

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Queues the bucket for the thread that sums buckets in order."""

        def make() -> Tensor:
            self._method.sum(bucket, self._collectives)
            return bucket.flat

        return self._thread.begin(make)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()
