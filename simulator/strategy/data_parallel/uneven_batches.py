"""Unequal shares of a step's samples: what each worker takes, and which workers are alike then.

Worker k of m_k samples has the mean gradient of its own samples. The mean over all n samples is the sum of these weighted by
m_k / n; an unweighted average would count the samples of a worker with few of them for more than those of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.strategy.layout.placement import Placed

Shares = Annotated[tuple[Width, ...], Field(min_length=1, max_length=100_000, description="samples of each worker")]


def check_shares(shares: Sequence[int], workers: int, total_samples: int) -> None:
    """Raises FieldError where shares are not one for each worker, or do not add up to the samples of a step."""
    if len(shares) != workers:
        message = f"{len(shares)} shares for {workers} workers; give one for each worker, or set strategy.workers={len(shares)}"
        raise FieldError(("strategy", "shares"), message)
    if sum(shares) != total_samples:
        message = f"they add up to {sum(shares)} samples, the batch has {total_samples}; set batch.total={sum(shares)}"
        raise FieldError(("strategy", "shares"), message)


def place_shares(shares: Sequence[int], per_node: int, apart: Collection[int]) -> list[Placed]:
    """Classes of alike workers, as `place` has them, of which all have the same share: that of the class's `rank`.

    Nodes are alike whose workers have the same shares, one by one, and none of whose workers is `apart`.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for node in range(-(-len(shares) // per_node)):
        here = _workers_on(node, len(shares), per_node)
        # a node with a worker apart is like no other: its number is negative, as no share is
        own = (-1 - node,) if any(rank in apart for rank in here) else ()
        alike.setdefault((*own, *(shares[rank] for rank in here)), []).append(node)
    found = [one for nodes in alike.values() for one in _classes_on(nodes, shares, per_node, apart)]
    return sorted(found, key=lambda placed: placed.rank)


def _workers_on(node: int, workers: int, per_node: int) -> range:
    return range(node * per_node, min((node + 1) * per_node, workers))


def _classes_on(nodes: Sequence[int], shares: Sequence[int], per_node: int, apart: Collection[int]) -> list[Placed]:
    """The classes of alike nodes: each worker apart, and the rest by their shares."""
    by_share: dict[int, list[int]] = {}
    singles = []
    for rank in _workers_on(nodes[0], len(shares), per_node):
        if rank in apart:
            singles.append(Placed(nodes[0], 1, 1, rank))
        else:
            by_share.setdefault(shares[rank], []).append(rank)
    return singles + [Placed(nodes[0], len(nodes), len(ranks), ranks[0]) for ranks in by_share.values()]
