"""Parameter servers, predicted and real: when they reply to a push (BSP, SSP or ASP), and how many steps workers take."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


class Rounds:
    """The rounds of BSP: which pushes are late, and when a round has as many as an update needs.

    A worker takes part in the round after its last reply, and is late once that round has ended.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._round_of: dict[int, int] = {}
        # pushes of the open round, with their numbers of equivalent ones
        self._pushes: dict[int, int] = {}

    def is_late(self, worker: int) -> bool:
        """Whether the round of a worker has ended."""
        return self._round_of.get(worker, 0) < self._ended

    def add(self, worker: int, pushes: int = 1) -> None:
        """Adds pushes of a worker to the open round."""
        self._pushes[worker] = self._pushes.get(worker, 0) + pushes

    def has(self, pushes: int) -> bool:
        """Whether the open round has this number of pushes."""
        return sum(self._pushes.values()) >= pushes

    def end(self) -> list[int]:
        """Ends the open round, and returns the workers with a push in it, which have their reply."""
        self._ended += 1
        workers, self._pushes = list(self._pushes), {}
        for worker in workers:
            self.join(worker)
        return workers

    def join(self, worker: int) -> None:
        """Lets a worker that has a reply take part in the open round."""
        self._round_of[worker] = self._ended


class Clocks:
    """The clocks of workers, each the number of its pushes that have been applied, and the rule of SSP and ASP: which clocks
    are too far ahead of the slowest one for a reply. Nobody waits for workers that have left."""

    def __init__(self, workers: Iterable[int], bound: float) -> None:
        """bound: largest number of pushes that a worker with a reply may be ahead of the slowest; infinite with ASP."""
        self._bound = bound
        self._clock = dict.fromkeys(workers, 0)
        self._slowest: float = 0
        self._at_slowest = len(self._clock)

    def advance(self, worker: int) -> float:
        """Counts an applied push, and returns the worker's clock; the slowest clock for a worker that has left."""
        if worker not in self._clock:
            return self._slowest
        clock = self._clock[worker] = self._clock[worker] + 1
        if clock == self._slowest + 1:
            self._advance_slowest()
        return clock

    def leave(self, worker: int) -> None:
        """Removes a worker that pushes no more."""
        if self._clock.pop(worker, None) == self._slowest:
            self._advance_slowest()

    def allows_reply(self, clock: float) -> bool:
        """Whether a push that made a worker's clock this number may be replied to."""
        return clock <= self._slowest + self._bound

    def _advance_slowest(self) -> None:
        """Counts one worker less at the slowest clock, and finds the new slowest clock after the last of them."""
        self._at_slowest -= 1
        if self._at_slowest == 0:
            self._slowest = min(self._clock.values(), default=math.inf)
            self._at_slowest = sum(clock == self._slowest for clock in self._clock.values())


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
