"""Unequal shares of a step's samples, and the classes of workers with equal shares.

Worker k with m_k samples has the mean gradient of its own samples. The mean over all n samples weights these by m_k / n; an
unweighted average would overweight samples of workers with few of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.strategy.layout.mesh import Placed

Shares = Annotated[tuple[Width, ...], Field(min_length=1, max_length=100_000, description="samples of each worker")]


def check_shares(shares: Sequence[int], workers: int, total_samples: int) -> None:
    """Raises FieldError unless there is one share per worker and shares add up to the samples of a step."""
    if len(shares) != workers:
        message = f"{len(shares)} shares for {workers} workers; give one per worker, or set strategy.workers={len(shares)}"
        raise FieldError(("strategy", "shares"), message)
    if sum(shares) != total_samples:
        message = f"they add up to {sum(shares)} samples, the batch has {total_samples}; set batch.total={sum(shares)}"
        raise FieldError(("strategy", "shares"), message)


def place_shares(shares: Sequence[int], per_node: int, distinguishable: Collection[int]) -> list[Placed]:
    """Classes of equivalent workers, as in `place`, with equal shares within each class.

    Nodes are equivalent if their workers have the same shares in order, and none of their workers is `distinguishable`.
    """
    equivalent: dict[tuple[int, ...], list[int]] = {}
    for node in range(-(-len(shares) // per_node)):
        workers = _workers_on(node, len(shares), per_node)
        # a node with a distinguishable worker is equivalent to no other: its key is negative, which no share is
        unique = (-1 - node,) if any(rank in distinguishable for rank in workers) else ()
        equivalent.setdefault((*unique, *(shares[rank] for rank in workers)), []).append(node)
    classes = [one for nodes in equivalent.values() for one in _classes_on(nodes, shares, per_node, distinguishable)]
    return sorted(classes, key=lambda placed: placed.rank)


def _workers_on(node: int, workers: int, per_node: int) -> range:
    return range(node * per_node, min((node + 1) * per_node, workers))


def _classes_on(nodes: Sequence[int], shares: Sequence[int], per_node: int, distinguishable: Collection[int]) -> list[Placed]:
    """Classes on equivalent nodes: one per distinguishable worker, and one per share for the others."""
    by_share: dict[int, list[int]] = {}
    singles = []
    for rank in _workers_on(nodes[0], len(shares), per_node):
        if rank in distinguishable:
            singles.append(Placed(nodes[0], 1, 1, rank))
        else:
            by_share.setdefault(shares[rank], []).append(rank)
    return singles + [Placed(nodes[0], len(nodes), len(ranks), ranks[0]) for ranks in by_share.values()]
