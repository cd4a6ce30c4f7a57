"""Gates: which pushes a server counts, and when it answers whom. A gate decides over the pushes of one bucket.

Crews push: a worker each, or all workers of a node. One that has pushed for the last time is waited for no longer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from scaleproof.simulator.program.consistency import Bsp, Gate, Ssp


class Turns(ABC):
    """left: how many pushes of each crew are still to be answered."""

    def __init__(self, pushes: Mapping[int, int]) -> None:
        self.left = dict(pushes)

    def is_late(self, crew: int) -> bool:
        """Whether its push comes after the update that it was meant for, and is dropped."""
        return False

    @abstractmethod
    def add(self, crew: int) -> None:
        """Counts its push."""

    @abstractmethod
    def is_due(self) -> bool:
        """Whether the parameters are to be updated by what was counted since they were last."""

    @abstractmethod
    def release(self) -> list[int]:
        """The crews that are to be answered now that they were; each is told once."""

    def answered(self, crew: int) -> None:
        """It has its answer."""
        self.left[crew] -= 1
        if self.left[crew] == 0:
            del self.left[crew]


class Rounds(Turns):
    """Of a barrier: an update takes the pushes of all crews but `backups`. Who comes later goes on with the round that is then
    open. Once a crew has pushed for the last time every push is an update: what others still push may be too little for a round
    here while they wait for one elsewhere."""

    def __init__(self, pushes: Mapping[int, int], backups: int) -> None:
        super().__init__(pushes)
        self._crews, self._needed = len(pushes), len(pushes) - backups
        self._round = 0
        self._of_crew = dict.fromkeys(pushes, 0)
        self._waiting: list[int] = []

    def is_late(self, crew: int) -> bool:
        return self._of_crew[crew] < self._round

    def add(self, crew: int) -> None:
        self._waiting.append(crew)

    def is_due(self) -> bool:
        return len(self._waiting) >= (self._needed if len(self.left) == self._crews else 1)

    def release(self) -> list[int]:
        self._round += 1
        done, self._waiting = self._waiting, []
        for crew in done:
            self.answered(crew)
        return done

    def answered(self, crew: int) -> None:
        self._of_crew[crew] = self._round
        super().answered(crew)


class Clocks(Turns):
    """Of a clock: every push is an update, answered once no crew that still pushes has more than `bound` fewer."""

    def __init__(self, pushes: Mapping[int, int], bound: float) -> None:
        super().__init__(pushes)
        self._bound = bound
        self._clock = dict.fromkeys(pushes, 0)
        self._waiting: list[int] = []
        self._is_new = False

    def add(self, crew: int) -> None:
        self._clock[crew] += 1
        self._waiting.append(crew)
        self._is_new = True

    def is_due(self) -> bool:
        return self._is_new

    def release(self) -> list[int]:
        self._is_new = False
        done: list[int] = []
        while allowed := [crew for crew in self._waiting if self._clock[crew] <= self._slowest() + self._bound]:
            self._waiting = [crew for crew in self._waiting if crew not in allowed]
            done += allowed
            for crew in allowed:
                self.answered(crew)
        return done

    def _slowest(self) -> float:
        return min((self._clock[crew] for crew in self.left), default=math.inf)


def turns(gate: Gate, pushes: Mapping[int, int]) -> Turns:
    """pushes: how many each crew makes in all."""
    match gate:
        case Bsp():
            return Rounds(pushes, gate.backups)
        case Ssp():
            return Clocks(pushes, gate.bound)
        case _:
            return Clocks(pushes, math.inf)
