"""Choice of the pairs of ranks to probe, and the classes of their links.

Links of the same class are compared, and a link that is slower than others of its class is an outlier. Classes follow from
where ranks are placed, and every end of a class is probed.
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
# If there are at most this many pairs, all are probed: those of eight ranks.
MOST_PAIRS: Final = 28
# Pairs per end, if there are more; two distinguish a slow end from a slow link.
_TOUCHES: Final = 2
_CPUS: Final = Path("/sys/devices/system/cpu")


class RankPair(NamedTuple):
    """Two ranks and the class of the link between them."""

    first: int
    second: int
    group: str


class RankPlace(NamedTuple):
    """Placement of a rank. leaf: the switch that its node is attached to. socket: of its cores; None if it may use several."""

    node: int
    leaf: int = 0
    socket: int | None = None


def places(nodes_of_ranks: Sequence[int], cluster: Cluster, sockets: Sequence[int | None] = ()) -> list[RankPlace]:
    """Placement of each rank according to the cluster. sockets: one per rank, from `socket`; all unknown if empty."""
    leaves = leaves_of_nodes(cluster)
    known = sockets or [None] * len(nodes_of_ranks)
    return [RankPlace(node, leaves[node], socket) for node, socket in zip(nodes_of_ranks, known, strict=True)]


def leaves_of_nodes(cluster: Cluster) -> list[int]:
    """Number of the switch that each node is attached to; a node without a switch has a number of its own."""
    if cluster.network is None:
        return [0] * cluster.nodes
    topology = cluster.network.topology
    wiring = topology.wire(cluster.nodes, cluster.network.bandwidth_Bps)
    numbers: dict[object, int] = {}
    return [numbers.setdefault(vertex, len(numbers)) for vertex in wiring.attached]


def socket(cpus: Iterable[int] | None = None, folder: Path = _CPUS) -> int | None:
    """Socket of the cores that this process may use, or of `cpus`; None if they are on several sockets or it cannot be
    determined."""
    allowed = cpus if cpus is not None else os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    try:
        sockets = {int((folder / f"cpu{cpu}" / "topology" / "physical_package_id").read_text()) for cpu in allowed}
    except (OSError, ValueError):
        return None
    return sockets.pop() if len(sockets) == 1 else None


def choose(where: Sequence[RankPlace], most: int = MOST_PAIRS) -> list[RankPair]:
    """All pairs if there are at most `most`, otherwise per class enough pairs that every end occurs twice if possible; sorted.

    Ends are ranks for pairs within a node, and nodes for pairs between nodes.
    """
    ranks = range(len(where))
    if len(where) * (len(where) - 1) // 2 <= most:
        return [RankPair(a, b, group_of(where[a], where[b])) for a, b in itertools.combinations(ranks, 2)]
    on: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        on[where[rank].node].append(rank)
    within = itertools.chain.from_iterable(itertools.combinations(members, 2) for members in on.values())
    # between two nodes any two of their ranks will do; two such pairs in case there are only these two nodes
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
    return sorted(pair for group, members in classes.items() for pair in _covering(members, ends.get(group, ranks)))


def group_of(one: RankPlace, other: RankPlace) -> str:
    """Class of the link between two placements."""
    if one.node != other.node:
        return SAME_LEAF if one.leaf == other.leaf else ACROSS
    return SAME_SOCKET if one.socket is not None and one.socket == other.socket else SAME_NODE


def _covering(pairs: Sequence[RankPair], end_of: Sequence[int]) -> Iterator[RankPair]:
    """Pairs of a class until each end occurs `_TOUCHES` times or no pair is left; the partner with the fewest occurrences
    first."""
    of_end: defaultdict[int, dict[RankPair, int]] = defaultdict(dict)
    for pair in pairs:
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
