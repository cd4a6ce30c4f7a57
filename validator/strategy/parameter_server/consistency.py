"""Consistency models on a server: which pushes of one bucket count, and when the server replies to whom.

A pusher is one worker, or all workers of a node that push together. The server does not wait for a pusher that has made its
last push, or that has left because there is no work for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from scaleproof.simulator.program.consistency import Bsp, ConsistencyModel, Ssp


class PushOrder(ABC):
    """Decides over the pushes of one bucket. left: number of pushes of each pusher that have no reply yet."""

    def __init__(self, pushes: Mapping[int, float]) -> None:
        self.left = dict(pushes)

    def is_late(self, pusher: int) -> bool:
        """Whether the next push of `pusher` comes after the update that it was meant for, and is dropped."""
        return False

    @abstractmethod
    def add(self, pusher: int) -> None:
        """Counts a push of `pusher`."""

    @abstractmethod
    def is_due(self) -> bool:
        """Whether the pushes counted since the last update make an update due."""

    @abstractmethod
    def release(self) -> list[int]:
        """The pushers to reply to after an update, each once."""

    def replied(self, pusher: int) -> None:
        """Notes that a push of `pusher` has its reply."""
        if pusher in self.left:
            self.left[pusher] -= 1
            if self.left[pusher] == 0:
                del self.left[pusher]

    def leave(self, pusher: int) -> None:
        """Notes that `pusher` pushes no more; a reply to it may still be due."""
        self.left.pop(pusher, None)


class Rounds(PushOrder):
    """Bulk synchronous: an update takes the pushes of all pushers but `backups`. Late pushers join the round that is then open.

    Once a pusher has made its last push, every push is an update: the remaining pushes may be too few for a round here while
    their pushers wait for a round on another server.
    """

    def __init__(self, pushes: Mapping[int, float], backups: int) -> None:
        super().__init__(pushes)
        self._pushers, self._needed = len(pushes), len(pushes) - backups
        self._round = 0
        self._round_of = dict.fromkeys(pushes, 0)
        self._waiting: list[int] = []

    def is_late(self, pusher: int) -> bool:
        """Whether the pusher's round is over."""
        return self._round_of[pusher] < self._round

    def add(self, pusher: int) -> None:
        """Adds the pusher to those of the open round."""
        self._waiting.append(pusher)

    def is_due(self) -> bool:
        """Whether the open round has enough pushes; one suffices once a pusher has made its last push."""
        return len(self._waiting) >= (self._needed if len(self.left) == self._pushers else 1)

    def release(self) -> list[int]:
        """Ends the round; its pushers get a reply."""
        self._round += 1
        done, self._waiting = self._waiting, []
        for pusher in done:
            self.replied(pusher)
        return done

    def replied(self, pusher: int) -> None:
        """Notes the reply; the pusher joins the open round."""
        self._round_of[pusher] = self._round
        super().replied(pusher)


class Clocks(PushOrder):
    """Stale synchronous: every push is an update. Its reply is due once no active pusher is more than `bound` pushes behind."""

    def __init__(self, pushes: Mapping[int, float], bound: float) -> None:
        super().__init__(pushes)
        self._bound = bound
        self._clock = dict.fromkeys(pushes, 0)
        self._waiting: list[int] = []
        self._is_new = False

    def add(self, pusher: int) -> None:
        """Advances the pusher's clock; it waits for its reply."""
        self._clock[pusher] += 1
        self._waiting.append(pusher)
        self._is_new = True

    def is_due(self) -> bool:
        """Whether a push came since the last update."""
        return self._is_new

    def release(self) -> list[int]:
        """The pushers that are at most `bound` pushes ahead of the slowest active one."""
        self._is_new = False
        done: list[int] = []
        while allowed := [pusher for pusher in self._waiting if self._clock[pusher] <= self._slowest() + self._bound]:
            self._waiting = [pusher for pusher in self._waiting if pusher not in allowed]
            done += allowed
            for pusher in allowed:
                self.replied(pusher)
        return done

    def _slowest(self) -> float:
        return min((self._clock[pusher] for pusher in self.left), default=math.inf)


def push_order(model: ConsistencyModel, pushes: Mapping[int, float]) -> PushOrder:
    """The decisions of a consistency model over one bucket. pushes: total number of pushes by pusher, infinite if not known."""
    match model:
        case Bsp():
            return Rounds(pushes, model.backups)
        case Ssp():
            return Clocks(pushes, model.bound)
        case _:
            return Clocks(pushes, math.inf)
