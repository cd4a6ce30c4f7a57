"""Exchanges of more than one collective: a thread makes them, bucket after bucket, while the rank computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Final

import torch
from torch import Tensor
from torch.futures import Future

from simulator.strategy.compression import Compression
from validator.strategy.base import Context
from validator.strategy.buckets import Allreduce, Bucket, Exchange
from validator.strategy.compression import Method, method_of
from validator.strategy.ring_allreduce import Ring
from validator.strategy.team import Team
from validator.strategy.wire import Wire

# Of the algorithms of an allreduce those that are made here.
WIRES: Final[dict[str | None, type[Wire]]] = {None: Wire, "ring": Ring}


def exchange_of(
    context: Context, team: Team, compression: Compression | None, algorithm: str | None, stage: int = -1
) -> Exchange:
    """How a strategy with such fields sums its buckets over the team."""
    if compression is None and algorithm is None:
        return Allreduce(context.recorder, team, stage)
    wire = WIRES[algorithm](context.recorder, team, stage)
    return Carried(context.device, method_of(compression, paced=context.pace is not None), wire)


class Carried(Exchange):
    """One thread, and one bucket at a time, so that all ranks make the same collectives in the same order."""

    def __init__(self, device: torch.device, method: Method, wire: Wire) -> None:
        self._method, self._wire = method, wire
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._devices: list[int | str | torch.device] = [device] if self._stream else []
        self._begun: queue.SimpleQueue[tuple[Bucket, Any, Future[Tensor]]] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name="exchange", daemon=True).start()

    def begin(self, bucket: Bucket) -> Future[Tensor]:
        filled = torch.cuda.current_stream().record_event() if self._stream else None
        future: Future[Tensor] = Future(devices=self._devices)
        self._begun.put((bucket, filled, future))
        return future

    def _carry(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            while True:
                bucket, filled, future = self._begun.get()
                if self._stream is not None:
                    self._stream.wait_event(filled)
                try:
                    self._method.sum(bucket, self._wire)
                except Exception as error:
                    future.set_exception(error)  # type: ignore[arg-type]
                else:
                    future.set_result(bucket.flat)
