"""Placement of ranks on nodes. Equivalent ranks are folded into one class."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Placed(NamedTuple):
    """A class of equivalent ranks: `each` ranks on every one of `nodes` equivalent nodes; `node` and `rank` are the first."""

    node: int
    nodes: int
    each: int
    rank: int

    @property
    def ranks(self) -> int:
        """Number of ranks of the class."""
        return self.nodes * self.each


def place(ranks: int, per_node: int, distinguishable: Collection[int]) -> list[Placed]:
    """Classes of ranks that fill nodes of `per_node` devices in order; each `distinguishable` rank is a class of its own.

    Full nodes without distinguishable ranks are equivalent.
    """
    full = ranks // per_node
    touched = {rank // per_node for rank in distinguishable if rank < ranks}
    classes = []
    if equivalent := full - sum(node < full for node in touched):
        first = next(node for node in range(full) if node not in touched)
        classes.append(Placed(first, equivalent, per_node, first * per_node))
    for node in touched | ({full} if ranks % per_node else set()):
        here = range(node * per_node, min((node + 1) * per_node, ranks))
        separate = [rank for rank in here if rank in distinguishable]
        if len(separate) < len(here):
            first = next(rank for rank in here if rank not in distinguishable)
            classes.append(Placed(node, 1, len(here) - len(separate), first))
        classes += [Placed(node, 1, 1, rank) for rank in separate]
    return sorted(classes, key=lambda placed: placed.rank)
