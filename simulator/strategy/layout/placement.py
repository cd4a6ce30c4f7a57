"""Placement: which ranks are alike, and on which nodes they are. Alike ranks are folded into one class."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Placed(NamedTuple):
    """A class of alike ranks: `each` on every one of `nodes` alike nodes; `node` and `rank` are the first."""

    node: int
    nodes: int
    each: int
    rank: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.each


def place(ranks: int, per_node: int, apart: Collection[int]) -> list[Placed]:
    """Ranks that fill nodes of `per_node` devices one after the other; those `apart` are classes of their own.

    Nodes that have none of them are alike, but for a last one that is not full.
    """
    full = ranks // per_node
    touched = {rank // per_node for rank in apart if rank < ranks}
    classes = []
    if alike := full - sum(node < full for node in touched):
        first = next(node for node in range(full) if node not in touched)
        classes.append(Placed(first, alike, per_node, first * per_node))
    for node in touched | ({full} if ranks % per_node else set()):
        here = range(node * per_node, min((node + 1) * per_node, ranks))
        alone = [rank for rank in here if rank in apart]
        if len(alone) < len(here):
            first = next(rank for rank in here if rank not in apart)
            classes.append(Placed(node, 1, len(here) - len(alone), first))
        classes += [Placed(node, 1, 1, rank) for rank in alone]
    return sorted(classes, key=lambda placed: placed.rank)
