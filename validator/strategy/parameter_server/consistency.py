"""Consistency models on a server: which pushes of one bucket count, and when the server replies to whom.

A pusher is one worker, or all workers of a node that push together. The server does not wait for a pusher that has made its
last push, or that has left because there is no work for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from scaleproof.simulator.common.parameter_server import Bsp, Clocks, ConsistencyModel, Rounds, Ssp


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


class RoundReplies(PushOrder):
    """Bulk synchronous: an update takes the pushes of all pushers but `backups`. Late pushers join the round that is then open.

    Once a pusher has made its last push, every push is an update: the remaining pushes may be too few for a round here while
    their pushers wait for a round on another server.
    """

    def __init__(self, pushes: Mapping[int, float], backups: int) -> None:
        super().__init__(pushes)
        self._pushers, self._needed = len(pushes), len(pushes) - backups
        self._rounds = Rounds()

    def is_late(self, pusher: int) -> bool:
        """Whether the pusher's round is over."""
        return self._rounds.is_late(pusher)

    def add(self, pusher: int) -> None:
        """Adds the pusher to those of the open round."""
        self._rounds.add(pusher)

    def is_due(self) -> bool:
        """Whether the open round has enough pushes; one suffices once a pusher has made its last push."""
        return self._rounds.has(self._needed if len(self.left) == self._pushers else 1)

    def release(self) -> list[int]:
        """Ends the round; its pushers get a reply."""
        done = self._rounds.end()
        for pusher in done:
            self.replied(pusher)
        return done

    def replied(self, pusher: int) -> None:
        """Notes the reply; the pusher joins the open round."""
        self._rounds.join(pusher)
        super().replied(pusher)


class ClockReplies(PushOrder):
    """Stale synchronous and asynchronous: every push is an update. Its reply is due once the pushers' clocks allow it."""

    def __init__(self, pushes: Mapping[int, float], bound: float) -> None:
        super().__init__(pushes)
        self._clocks = Clocks(pushes, bound)
        # pushers, each with its clock
        self._waiting: list[tuple[int, float]] = []
        self._is_new = False

    def add(self, pusher: int) -> None:
        """Advances the pusher's clock; it waits for its reply."""
        self._waiting.append((pusher, self._clocks.advance(pusher)))
        self._is_new = True

    def is_due(self) -> bool:
        """Whether a push came since the last update."""
        return self._is_new

    def release(self) -> list[int]:
        """The pushers whose clocks allow a reply; more once the last push of a pusher has its reply, who then leaves."""
        self._is_new = False
        done: list[int] = []
        while allowed := [each for each in self._waiting if self._clocks.allows_reply(each[1])]:
            self._waiting = [each for each in self._waiting if each not in allowed]
            done += [pusher for pusher, _ in allowed]
            for pusher, _ in allowed:
                self.replied(pusher)
        return done

    def replied(self, pusher: int) -> None:
        """Notes the reply; nobody waits for a pusher that has made its last push."""
        super().replied(pusher)
        if pusher not in self.left:
            self._clocks.leave(pusher)

    def leave(self, pusher: int) -> None:
        """Notes that `pusher` pushes no more; a reply to it may still be due."""
        super().leave(pusher)
        self._clocks.leave(pusher)


def push_order(model: ConsistencyModel, pushes: Mapping[int, float]) -> PushOrder:
    """The decisions of a consistency model over one bucket. pushes: total number of pushes by pusher, infinite if not known."""
    match model:
        case Bsp():
            return RoundReplies(pushes, model.backups)
        case Ssp():
            return ClockReplies(pushes, model.bound)
        case _:
            return ClockReplies(pushes, math.inf)
