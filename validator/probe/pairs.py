"""Pairs: which ranks are probed with one another, and of what class their links are.

Alike pairs are compared, and one link that is slower than others of its class is odd: so classes follow from where ranks are,
and every end of a class has its turn.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.simulator.cluster import Cluster

SAME_SOCKET: Final = "same socket"
SAME_NODE: Final = "same node"
SAME_LEAF: Final = "same leaf"
ACROSS: Final = "across"
# Up to so many pairs all are probed: those of eight ranks.
MOST_PAIRS: Final = 28
# Of more pairs as many as it takes to have each end so often; odd ends are told from odd links by two.
_TOUCHES: Final = 2
_CPUS: Final = Path("/sys/devices/system/cpu")


class RankPair(NamedTuple):
    """Two ranks and the class of what joins them."""

    first: int
    second: int
    group: str


class RankPlace(NamedTuple):
    """Where a rank is. leaf: the switch that its node is attached to. socket: of its cores; None where it may use several."""

    node: int
    leaf: int = 0
    socket: int | None = None


def places(nodes_of_ranks: Sequence[int], cluster: Cluster, sockets: Sequence[int | None] = ()) -> list[RankPlace]:
    """Where each rank is, as the cluster is described. sockets: of each rank, as `socket` tells them; none if not given."""
    leaves = leaves_of_nodes(cluster)
    known = sockets or [None] * len(nodes_of_ranks)
    return [RankPlace(node, leaves[node], socket) for node, socket in zip(nodes_of_ranks, known, strict=True)]


def leaves_of_nodes(cluster: Cluster) -> list[int]:
    """The number of the switch that each node is attached to; a node that is attached to none has one of its own."""
    if cluster.network is None:
        return [0] * cluster.nodes
    topology = cluster.network.topology
    wiring = topology.wire(cluster.nodes, cluster.network.bandwidth_Bps)
    numbers: dict[object, int] = {}
    return [numbers.setdefault(vertex, len(numbers)) for vertex in wiring.attached]


def socket(cpus: Iterable[int] | None = None, folder: Path = _CPUS) -> int | None:
    """The socket of the cores that this process may use, or of others; None where those are of several, or nobody can tell."""
    allowed = cpus if cpus is not None else os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    try:
        found = {int((folder / f"cpu{cpu}" / "topology" / "physical_package_id").read_text()) for cpu in allowed}
    except (OSError, ValueError):
        return None
    return found.pop() if len(found) == 1 else None


def choose(where: Sequence[RankPlace], most: int = MOST_PAIRS) -> list[RankPair]:
    """All pairs where they are few, else of each class some that have every end twice where there are as many; in order.

    Ends are ranks within nodes, and nodes between them.
    """
    ranks = range(len(where))
    if len(where) * (len(where) - 1) // 2 <= most:
        return [RankPair(a, b, group_of(where[a], where[b])) for a, b in itertools.combinations(ranks, 2)]
    on: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        on[where[rank].node].append(rank)
    within = itertools.chain.from_iterable(itertools.combinations(members, 2) for members in on.values())
    # between two nodes any two of their ranks do, and two such pairs where there are only these nodes
    between = dict.fromkeys(
        (on[a][(b + turn) % len(on[a])], on[b][(a + turn) % len(on[b])])
        for a, b in itertools.combinations(sorted(on), 2)
        for turn in range(_TOUCHES)
    )
    classes: defaultdict[str, list[RankPair]] = defaultdict(list)
    for a, b in itertools.chain(within, between):
        group = group_of(where[a], where[b])
        classes[group].append(RankPair(min(a, b), max(a, b), group))
    ends = {SAME_LEAF: [place.node for place in where], ACROSS: [place.node for place in where]}
    return sorted(pair for group, alike in classes.items() for pair in _some(alike, ends.get(group, ranks)))


def group_of(one: RankPlace, other: RankPlace) -> str:
    """The class of what joins two places."""
    if one.node != other.node:
        return SAME_LEAF if one.leaf == other.leaf else ACROSS
    return SAME_SOCKET if one.socket is not None and one.socket == other.socket else SAME_NODE


def _some(alike: Sequence[RankPair], end_of: Sequence[int]) -> Iterator[RankPair]:
    """Pairs of a class, until each end has its touches, or there are no more of it; always with the end that had fewest."""
    of_end: defaultdict[int, dict[RankPair, int]] = defaultdict(dict)
    for pair in alike:
        one, other = end_of[pair.first], end_of[pair.second]
        of_end[one][pair], of_end[other][pair] = other, one
    touched: Counter[int] = Counter()
    for end in sorted(of_end):
        while touched[end] < _TOUCHES and of_end[end]:
            pair = min(of_end[end], key=lambda pair: (touched[of_end[end][pair]], pair))
            other = of_end[end].pop(pair)
            of_end[other].pop(pair)
            touched.update((end, other))
            yield pair
