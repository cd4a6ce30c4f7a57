"""Collectives of replicas, and collectives within the passes that they run next to, on the same links.

While both move, each gets half of the links. Passes of P seconds contain collectives for X of them, so collectives of replicas
that would take S seconds lose X / P of the time that they run next to passes, and passes lose as much for what they wait for.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.groups import Group

Times = NDArray[np.float64]


class LinkLevel(IntEnum):
    """The links that limit a collective: those inside a node, or those between nodes."""

    NODE = 0
    NETWORK = 1

    @classmethod
    def of(cls, group: Group) -> LinkLevel:
        """The links that limit collectives of a group."""
        return cls.NETWORK if group.nodes > 1 else cls.NODE


def together_s(moved_s: Times, passes_s: Times) -> Times:
    """Seconds for which the collectives of each layer move next to passes, if nothing slows either; layers are the last axis.

    Layers are passed from the last to the first. A layer's collectives, of `moved_s` seconds, follow its pass and the
    collectives before them. Read backwards in time, the same holds for collectives that precede passes from the first layer to
    the last.
    """
    moved_s, passes_s = moved_s[..., ::-1], passes_s[..., ::-1]
    passed_s, ends_s = np.cumsum(passes_s, axis=-1), np.cumsum(moved_s, axis=-1)
    # none ends earlier than all since one that began right after its pass
    ends_s = ends_s + np.maximum.accumulate(passed_s - (ends_s - moved_s), axis=-1)
    result: Times = np.maximum(np.minimum(ends_s, passed_s[..., -1:]) - (ends_s - moved_s), 0.0)
    return result[..., ::-1]


def delays_s(next_s: Times, within_s: Times, exposed_s: Times, passes_s: Times) -> tuple[Times, Times]:
    """Additional seconds of passes, and of the collectives of replicas next to them, that share links.

    Together both take no less than the links are busy. next_s: seconds for which collectives of replicas move next to
    passes. within_s: seconds of the collectives within the passes; exposed_s: seconds of them for which the passes wait.
    passes_s: seconds of the passes, those included.
    """
    share = np.divide(next_s, passes_s, out=np.zeros_like(next_s), where=passes_s > 0)
    # collectives hidden behind compute lengthen passes once the links have no time left
    longer_s = np.maximum(share * exposed_s, np.minimum(within_s + next_s - passes_s, next_s))
    return np.where(next_s * within_s > 0, longer_s, 0.0), share * within_s
