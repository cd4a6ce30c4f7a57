"""Ranks that take part in a probe, and how they come to use the same numbers.

Ranks that repeat a collective or a message exchange must repeat it equally often. They agree on the same times after every
batch of repetitions, and each decides on these times only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.launch.rank import exchange, here
from scaleproof.validator.probe.points import Point
from scaleproof.validator.record import status_board


class Peers(Protocol):
    """Ranks that take part in a probe. All of them call the same methods in the same order."""

    def settle(self, own: Sequence[float]) -> list[float]:
        """The same numbers on all ranks, in place of each rank's own; of times, the ones that count."""

    def total(self, own: float) -> float:
        """Sum over all ranks, on each of them."""


class SingleRank:
    """A rank that probes independently of the others."""

    def settle(self, own: Sequence[float]) -> list[float]:
        """The rank's own numbers."""
        return list(own)

    def total(self, own: float) -> float:
        """The rank's own number."""
        return own


@dataclass(frozen=True)
class PairPeers:
    """Two ranks that need no process group. The first rank's times count."""

    first: int
    second: int

    def settle(self, own: Sequence[float]) -> list[float]:
        """The first rank's numbers, on both."""
        numbers = _tensor(own)
        if here().rank == self.first:
            dist.send(numbers, self.second)
        else:
            dist.recv(numbers, self.first)
        return _numbers(numbers)

    def total(self, own: float) -> float:
        """Sum of both ranks' numbers, on both."""
        added = _tensor([own])
        if here().rank == self.second:
            dist.send(added, self.first)
        else:
            dist.recv(added, self.second)
            added += own
        return self.settle(_numbers(added))[0]


@dataclass(frozen=True)
class GroupPeers:
    """Ranks of a process group; None stands for the group of all ranks. The slowest rank's times count."""

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None

    def settle(self, own: Sequence[float]) -> list[float]:
        """The largest of each number in the group, on all its ranks."""
        numbers = _tensor(own)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.group)
        return _numbers(numbers)

    def total(self, own: float) -> float:
        """Sum of the group's numbers, on all its ranks."""
        added = _tensor([own])
        dist.all_reduce(added, group=self.group)
        return _numbers(added)[0]


ALONE: Final = SingleRank()


@contextmanager
def peer_groups(groups: Sequence[Sequence[int]]) -> Iterator[list[GroupPeers | None]]:
    """Each group's ranks as peers within the context, None on other ranks; all ranks enter and leave the context."""
    everybody = tuple(range(here().ranks))
    made: list[Any] = [None if tuple(ranks) == everybody else dist.new_group(list(ranks)) for ranks in groups]
    yield [GroupPeers(tuple(ranks), group) if here().rank in ranks else None for ranks, group in zip(groups, made, strict=True)]
    wait_for_all()
    for ranks, group in zip(groups, made, strict=True):
        if group is not None and here().rank in ranks:
            dist.destroy_process_group(group)


def wait_for_all() -> None:
    """Waits for all ranks. The status says so, so that a waiting rank is not taken for one that hangs."""
    here().status.enter(Phase.SYNCHRONISE)
    GroupPeers(()).settle([0.0])
    here().status.enter(status_board.BETWEEN_PHASES)


def collected(own: Sequence[Point]) -> list[dict[str, Any]]:
    """Points of all ranks in rank order, as plain data, on every rank."""
    by_rank: list[list[dict[str, Any]]] = exchange([point.plain() for point in own])
    return [plain for points in by_rank for plain in points]


def named(ranks: Sequence[int]) -> str:
    """Ranks as text: 'rank 3', 'ranks 0-3', 'ranks 0, 2, 5'."""
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
