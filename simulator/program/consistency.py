"""Gates: when servers answer, the one thing in which synchronous, stale synchronous and asynchronous programs differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Bsp:
    """Synchronous: a step's pushes are summed; once all but `backups` of them are, the server updates and answers all of them.

    A push that comes later is dropped and answered at once (backup workers, arXiv 1604.00981).
    """

    backups: int = 0


@dataclass(frozen=True)
class Ssp:
    """Stale synchronous: each push is applied as it comes, and answered once nobody has had more than `bound` fewer pushes
    applied than the one that asks (Ho et al., NIPS 2013)."""

    bound: int


@dataclass(frozen=True)
class Asp:
    """Asynchronous: each push is applied as it comes and answered at once."""


Gate = Bsp | Ssp | Asp
SYNCHRONOUS: Final = Bsp()

# In place of how many updates by others the parameters had when a push was applied: it was dropped.
DROPPED: Final = -1


@dataclass(frozen=True)
class WorkQuota:
    """What a run of `count` steps, each of one worker, consists of: taken one by one by whoever is free, if `shared`, or in
    parts that differ by one at most, the first workers having more."""

    count: int
    shared: bool
