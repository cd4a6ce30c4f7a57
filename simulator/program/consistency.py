"""Consistency models of parameter servers: when servers reply to a push (BSP, SSP or ASP)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Bsp:
    """Synchronous: the pushes of a step are summed. Once all but `backups` of them have arrived, the server updates and replies
    to all of them.

    Later pushes are dropped and replied to immediately (backup workers, arXiv 1604.00981).
    """

    backups: int = 0


@dataclass(frozen=True)
class Ssp:
    """Stale synchronous: each push is applied on arrival, and replied to once no worker has had more than `bound` fewer pushes
    applied than the sender (Ho et al., NIPS 2013)."""

    bound: int


@dataclass(frozen=True)
class Asp:
    """Asynchronous: each push is applied on arrival and replied to immediately."""


ConsistencyModel = Bsp | Ssp | Asp
SYNCHRONOUS: Final = Bsp()

# Staleness of a push that was dropped, in place of the number of updates by others.
DROPPED: Final = -1


@dataclass(frozen=True)
class WorkQuota:
    """A run of `count` steps, each taken by one worker.

    shared: whichever worker is free takes the next step. Otherwise workers have fixed parts that differ by at most one step;
    the first workers have more.
    """

    count: int
    shared: bool

    def most_steps(self, worker: int, workers: int) -> int:
        """Largest number of steps that a worker may take. worker: its number from 0. workers: number of all."""
        share, more = divmod(self.count, workers)
        return self.count if self.shared else share + (worker < more)
