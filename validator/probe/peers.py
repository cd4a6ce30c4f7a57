"""Peers: the ranks that take part in a probe, and how all of them go by the same numbers.

Ranks that repeat something together must do so equally often. They settle on the same times after every few repetitions, and
each decides by those alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.run.run import Phase
from scaleproof.validator.launch import status_board
from scaleproof.validator.launch.rank import exchange, here
from scaleproof.validator.probe.points import Point


class Peers(Protocol):
    """Those who take part. All of them call the same, in the same order."""

    def settle(self, own: Sequence[float]) -> list[float]:
        """The same numbers on all of them, in place of each one's own; of times those that count."""

    def total(self, own: float) -> float:
        """The sum over all of them, on each."""


class SingleRank:
    """A rank by itself, whatever others do meanwhile."""

    def settle(self, own: Sequence[float]) -> list[float]:
        return list(own)

    def total(self, own: float) -> float:
        return own


@dataclass(frozen=True)
class Two:
    """Two ranks that need no process group of their own. The first one's times count."""

    first: int
    second: int

    def settle(self, own: Sequence[float]) -> list[float]:
        numbers = _tensor(own)
        if here().rank == self.first:
            dist.send(numbers, self.second)
        else:
            dist.recv(numbers, self.first)
        return _numbers(numbers)

    def total(self, own: float) -> float:
        added = _tensor([own])
        if here().rank == self.second:
            dist.send(added, self.first)
        else:
            dist.recv(added, self.second)
            added += own
        return self.settle(_numbers(added))[0]


@dataclass(frozen=True)
class Together:
    """The ranks of a process group, of all ranks where there is none. Each time is the slowest one's."""

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    def settle(self, own: Sequence[float]) -> list[float]:
        numbers = _tensor(own)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.group)
        return _numbers(numbers)

    def total(self, own: float) -> float:
        added = _tensor([own])
        dist.all_reduce(added, group=self.group)
        return _numbers(added)[0]


ALONE: Final = SingleRank()


@contextmanager
def together(groups: Sequence[Sequence[int]]) -> Iterator[list[Together | None]]:
    """Each group's ranks as peers while the context lasts, None on other ranks; all ranks enter it, and leave it together."""
    everybody = tuple(range(here().ranks))
    made: list[Any] = [None if tuple(ranks) == everybody else dist.new_group(list(ranks)) for ranks in groups]
    yield [Together(tuple(ranks), group) if here().rank in ranks else None for ranks, group in zip(groups, made, strict=True)]
    wait_for_all()
    for ranks, group in zip(groups, made, strict=True):
        if group is not None and here().rank in ranks:
            dist.destroy_process_group(group)


def wait_for_all() -> None:
    """Returns once all ranks are here. Who waits tells so, and is not taken for one that hangs."""
    here().status.enter(Phase.SYNCHRONISE)
    Together(()).settle([0.0])
    here().status.enter(status_board.BETWEEN_PHASES)


def collected(own: Sequence[Point]) -> list[dict[str, Any]]:
    """The points that all ranks give, in rank order, as plain data on every rank."""
    everyones: list[list[dict[str, Any]]] = exchange([point.plain() for point in own])
    return [plain for points in everyones for plain in points]


def named(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 0-3', 'ranks 0, 2, 5'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if tuple(ranks) == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _tensor(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=here().device)


def _numbers(tensor: Tensor) -> list[float]:
    result: list[float] = tensor.tolist()
    return result
