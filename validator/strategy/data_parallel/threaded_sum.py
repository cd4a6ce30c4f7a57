"""Sums that need more than one collective: a thread makes them, one bucket after the other, while the rank computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Final

import torch
from torch import Tensor
from torch.futures import Future

from scaleproof.simulator.strategy.data_parallel.compression import Compression
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.buckets import Allreduce, Bucket, BucketSum
from scaleproof.validator.strategy.data_parallel.compression import Method, method_of
from scaleproof.validator.strategy.data_parallel.ring_allreduce import Ring
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.team import Team

# Algorithms of an allreduce that are implemented here; None is the library's choice.
ALGORITHMS: Final[dict[str | None, type[Collectives]]] = {None: Collectives, "ring": Ring}

# A thread that has nothing left to do ends at once.
_JOIN_S: Final = 0.5


def bucket_sum_of(
    context: Context, team: Team, compression: Compression | None, algorithm: str | None, stage: int = -1
) -> BucketSum:
    """The way in which a strategy with this compression and algorithm sums its buckets over the team."""
    if compression is None and algorithm is None:
        return Allreduce(Collectives(context.recorder, team, stage))
    collectives = ALGORITHMS[algorithm](context.recorder, team, stage)
    return ThreadedSum(context.device, method_of(compression, paced=context.pace is not None), collectives)


class ThreadedSum(BucketSum):
    """Sums one bucket at a time in one thread, so that all ranks make the same collectives in the same order."""

    def __init__(self, device: torch.device, method: Method, collectives: Collectives) -> None:
        self._method, self._collectives = method, collectives
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._devices: list[int | str | torch.device] = [device] if self._stream else []
        self._begun: queue.SimpleQueue[tuple[Bucket, Any, Future[Tensor]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._sum_all, name="bucket sums", daemon=True)
        self._thread.start()

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        """Queues the bucket for the thread that sums buckets in order."""
        filled = torch.cuda.current_stream().record_event() if self._stream else None
        future: Future[Tensor] = Future(devices=self._devices)
        self._begun.put((bucket, filled, future))
        return future

    def close(self) -> None:
        """Ends the thread after the buckets under way; does not wait for buckets that never complete."""
        self._begun.put(None)
        self._thread.join(_JOIN_S)

    def _sum_all(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            while (begun := self._begun.get()) is not None:
                bucket, filled, future = begun
                if self._stream is not None:
                    self._stream.wait_event(filled)
                try:
                    self._method.sum(bucket, self._collectives)
                except Exception as error:
                    future.set_exception(error)  # type: ignore[arg-type]
                else:
                    future.set_result(bucket.flat)
