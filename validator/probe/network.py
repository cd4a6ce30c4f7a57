"""Times of messages between two ranks, and of allreduces over a group, by size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
import torch.distributed as dist

_WARM_UP = 3


class Timing(TypedDict):
    """seconds: of each repetition. cores_busy: cores that all ranks of the group together kept busy meanwhile."""

    size_bytes: int
    seconds: list[float]
    cores_busy: float


def point_to_point(sizes_bytes: Sequence[int], budget_s: float) -> list[Timing]:
    """One-way times of messages from rank 0 to rank 1 and back, `budget_s` seconds per size; the same on both ranks."""
    return [_timed(round_trip(), size, budget_s, messages=2) for size in sizes_bytes]


def allreduce(sizes_bytes: Sequence[int], budget_s: float) -> list[Timing]:
    """Times of summing a 32-bit float buffer over all ranks, `budget_s` seconds per size; the same on every rank."""

    def step(buffer: torch.Tensor) -> None:
        dist.all_reduce(buffer)

    return [_timed(step, size, budget_s, messages=1) for size in sizes_bytes]


def round_trip() -> Callable[[torch.Tensor], None]:
    """What sends a buffer from rank 0 to rank 1 and back; both call it."""
    first = dist.get_rank() == 0

    def send_and_return(buffer: torch.Tensor) -> None:
        if first:
            dist.send(buffer, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)

    return send_and_return


def _timed(step: Callable[[torch.Tensor], None], size_bytes: int, budget_s: float, messages: int) -> Timing:
    buffer = torch.zeros(max(1, size_bytes // 4))
    for _ in range(_WARM_UP):
        step(buffer)
    count = _agreed_count(step, buffer, budget_s)
    seconds = []
    cpu_s, began_s = time.process_time(), time.perf_counter()
    for _ in range(count):
        start_s = time.perf_counter()
        step(buffer)
        seconds.append((time.perf_counter() - start_s) / messages)
    busy = torch.tensor([(time.process_time() - cpu_s) / (time.perf_counter() - began_s)])
    dist.all_reduce(busy)
    return {"size_bytes": size_bytes, "seconds": _of_slowest(seconds), "cores_busy": float(busy)}


def _agreed_count(step: Callable[[torch.Tensor], None], buffer: torch.Tensor, budget_s: float) -> int:
    """Repetitions that fill the budget; all ranks must do as many, so rank 0 decides."""
    start_s = time.perf_counter()
    step(buffer)
    once_s = time.perf_counter() - start_s
    count = torch.tensor([max(5, min(200, int(budget_s / once_s)))])
    dist.broadcast(count, 0)
    return int(count)


def _of_slowest(seconds: Sequence[float]) -> list[float]:
    """Each repetition's time on the rank that took longest."""
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    result: list[Any] = slowest.tolist()
    return result
