"""Clocks: times of ranks on different machines, told by one clock.

Processes of one machine share time.perf_counter's clock on Linux. Between machines it is off by any amount, which messages
there and back estimate: the other clock is read halfway, give or take half the way there and back. It is done once, before
training; quartz clocks part by some 10 to 50 µs per second from then on, which bounds how far spans of ranks on different
machines can be told apart. Step times do not depend on it beyond that.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from validator.rank import exchange, here

_ROUNDS: Final = 16
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def machine() -> str:
    """The same for processes that share a clock, and different on different machines."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()


def offset_to_rank_0_s(own_machine: str) -> float:
    """What to add to time.perf_counter here to have rank 0's: zero on its machine. All ranks call it together."""
    machines = exchange(own_machine)
    offset_s = 0.0
    for rank in range(1, here().ranks):
        if machines[rank] == machines[0]:
            continue
        if here().rank == 0:
            _answer(rank)
        elif here().rank == rank:
            offset_s = _ask()
    return offset_s


def _answer(rank: int) -> None:
    for _ in range(_ROUNDS):
        dist.recv(_stamp(), rank)
        dist.send(_stamp(), rank)


def _ask() -> float:
    """Of several estimates the one whose message was there and back fastest."""
    estimates = []
    for _ in range(_ROUNDS):
        asked_s = time.perf_counter()
        dist.send(_stamp(), 0)
        answer = _stamp()
        dist.recv(answer, 0)
        back_s = time.perf_counter()
        estimates.append((back_s - asked_s, float(answer) - (asked_s + back_s) / 2))
    return min(estimates)[1]


def _stamp() -> torch.Tensor:
    return torch.tensor(time.perf_counter(), dtype=torch.float64, device=here().device)
