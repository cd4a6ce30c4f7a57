"""Algorithms of collectives as consecutive rounds of messages between the members of a group.

Costs, link loads and message-by-message programs are derived from these descriptions. A collective's size is nccl-tests'
`size`: the whole buffer, which is what an all_gather receives and what a reduce_scatter sends; each rank's buffer in an
alltoall; one message in a sendrecv; the root's buffer in a gather or a scatter.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import InputError

Op = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv", "gather", "scatter"]
OPS: Final[tuple[Op, ...]] = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv", "gather", "scatter"
)  # fmt: skip

# In place of a member's number: a switch of its node or of the network that reduces or multicasts.
NODE_SWITCH: Final = -1
NETWORK_SWITCH: Final = -2


# ranks of an alltoall; its messages need 2 GiB of memory
_MAX_ALLTOALL_RANKS: Final = 8192

_Numbers = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Round:
    """Concurrent messages; `times` such rounds follow one another.

    source, target: numbers of members of the group, or a switch; share: message size over the collective's size. Arrays have
    shape (messages,).
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]
    times: int = 1

    @classmethod
    def of(cls, source: _Numbers, target: _Numbers, share: float, times: int = 1) -> Round:
        """A round of messages of equal size."""
        sources, targets = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
        return cls(sources, targets, np.broadcast_to(np.float64(share), len(sources)), times)

    def back(self) -> Round:
        """A round of the same messages in the opposite direction."""
        return Round(self.target, self.source, self.share, self.times)


@dataclass(frozen=True)
class Group:
    """The members of a collective. ranks: ascending, a range if they are evenly spaced. devices: of each node, so that a rank's
    node is rank // devices."""

    ranks: range | tuple[int, ...]
    devices: int

    @classmethod
    def of(cls, ranks: int | Sequence[int], devices: int) -> Group:
        """The group of the first `ranks` ranks, or of the listed ones. Raises InputError for an empty list
        and for ranks that occur twice."""
        if isinstance(ranks, int):
            if ranks < 1:
                raise InputError(f"a collective over {ranks} ranks; give at least one")
            return cls(range(ranks), devices)
        if isinstance(ranks, range) and ranks and ranks.start >= 0 < ranks.step:
            return cls(ranks, devices)
        if repeated := [rank for rank, count in Counter(ranks).items() if count > 1]:
            raise InputError(f"rank {repeated[0]} stands more than once in the group; name each rank once")
        if not ranks or min(ranks) < 0:
            raise InputError("a group needs ranks, numbered from zero on")
        ordered = sorted(ranks)
        even = range(ordered[0], ordered[-1] + 1, ordered[1] - ordered[0] if len(ordered) > 1 else 1)
        return cls(even if list(even) == ordered else tuple(ordered), devices)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @functools.cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """The ranks as an array, shape (size,); np.array is slow for a range."""
        ranks = self.ranks
        return np.arange(ranks.start, ranks.stop, ranks.step) if isinstance(ranks, range) else np.array(ranks, dtype=np.int64)

    @functools.cached_property
    def node_numbers(self) -> NDArray[np.int64]:
        """The nodes with members, ascending; shape (nodes,)."""
        return np.unique(self._numbers // self.devices)

    @functools.cached_property
    def node_of(self) -> NDArray[np.int64]:
        """Each member's node as an index into `node_numbers`; shape (size,)."""
        return np.searchsorted(self.node_numbers, self._numbers // self.devices)

    @functools.cached_property
    def device_of(self) -> NDArray[np.int64]:
        """Each member's device on its node; shape (size,)."""
        return self._numbers % self.devices

    @functools.cached_property
    def first(self) -> NDArray[np.int64]:
        """The first member on each node; shape (nodes,)."""
        return np.searchsorted(self.node_of, np.arange(self.nodes))

    @functools.cached_property
    def members(self) -> NDArray[np.int64]:
        """Number of members on each node; shape (nodes,)."""
        return np.bincount(self.node_of)

    @functools.cached_property
    def shape(self) -> tuple[bytes, bytes]:
        """A key that is equal for groups with the same devices on each node, on whichever nodes."""
        return self.members.tobytes(), self.device_of.tobytes()

    @property
    def nodes(self) -> int:
        """Number of nodes with members."""
        return len(self.node_numbers)

    @functools.cached_property
    def per_node(self) -> int:
        """Largest number of members on a node."""
        return int(self.members.max())

    @property
    def is_even(self) -> bool:
        """Whether all nodes have the same number of members."""
        return bool((self.members == self.per_node).all())


def bus_factor(op: Op, ranks: int) -> float:
    """nccl-tests' bus bandwidth, which is comparable with link bandwidths, over its algorithm bandwidth."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("reduce_scatter", "all_gather", "alltoall", "gather", "scatter") else 1.0


def ring(op: Op, group: Group) -> list[Round]:
    """A ring in which every member sends to the next (Patarasuk & Yuan 2009); broadcast and reduce pass it once."""
    if op in ("broadcast", "reduce"):
        steps = [Round.of([i], [i + 1], 1.0) for i in range(group.size - 1)]
        return steps if op == "broadcast" else [step.back() for step in reversed(steps)]
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + 1) % group.size, 1 / group.size, times=group.size - 1)
    return [lap, lap] if op == "all_reduce" else [lap]


def whole_ring(op: Op, group: Group) -> list[Round]:
    """An all-reduce around a ring of which each member keeps its part: gloo's reduce_scatter."""
    return ring("all_reduce", group)


def ring_gather(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter around a ring, then a gather to the first member: gloo's reduce."""
    return [*ring("reduce_scatter", group), *linear("gather", group)]


def tree(op: Op, group: Group) -> list[Round]:
    """A chain in each node and two binary trees between nodes, each for half the data (Sanders et al. 2009).

    The inner nodes of one tree are leaves of the other.
    """
    parents = _parents(group.nodes)
    if group.nodes % 2:
        other = (np.roll(parents, 1) + 1) % group.nodes
        other[np.roll(parents, 1) < 0] = -1
    else:
        other = np.where(parents[::-1] < 0, -1, group.nodes - 1 - parents[::-1])
    return _chained(group, _tree_rounds([parents, other], group.first))


def binary_tree(op: Op, group: Group) -> list[Round]:
    """A binary tree over all members: a reduce to the root, then a broadcast."""
    return _there_and_back(_tree_rounds([_parents(group.size)], np.arange(group.size)))


def binomial(op: Op, group: Group) -> list[Round]:
    """A binomial tree: in every round each member that has the data sends it to one that has not; a reduce is the reverse."""
    rounds = []
    for distance in (1 << i for i in range((group.size - 1).bit_length())):
        source = np.arange(min(distance, group.size - distance))
        rounds.append(Round.of(source, source + distance, 1.0))
    return rounds if op == "broadcast" else [step.back() for step in reversed(rounds)]


def halving_doubling(op: Op, group: Group) -> list[Round]:
    """Recursive halving, then doubling, near partners first (Thakur et al. 2005); a reduce_scatter is the first half, an
    all_gather the second.

    Members beyond a power of two first send their data to a partner, and get the result from it.
    """
    levels = group.size.bit_length() - 1
    everyone, share = np.arange(1 << levels), 1.0
    beyond = np.arange(1 << levels, group.size)
    rounds = [Round.of(beyond, beyond - (1 << levels), 1.0)] if len(beyond) else []
    for level in range(levels):
        share /= 2
        rounds.append(Round.of(everyone, everyone ^ (1 << level), share))
    if op == "all_reduce":
        return _there_and_back(rounds)
    if len(beyond):
        rounds.append(Round.of(beyond - (1 << levels), beyond, 1 / group.size))
    return rounds if op == "reduce_scatter" else [step.back() for step in reversed(rounds)]


def hierarchical(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter by a ring in each node, then by rings between the nodes' members of equal number, which each reduce a
    part of the data. An all-gather is the reverse, an all-reduce both. All network cards of a node are used."""
    inside, per_node, nodes = _inside_ring(group), group.per_node, group.nodes
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + per_node) % group.size, 1 / group.size, times=nodes - 1)
    between = [lap] if nodes > 1 else []
    scatter, gather = [*inside, *between], [*between, *inside]
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": scatter + gather}[op]


def in_network(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter inside each node, sums of the parts in the network's switches (SHARP), and an all-gather inside."""
    inside, everyone = _inside_ring(group), np.arange(group.size)
    if group.nodes == 1:
        return [*inside, *inside]
    up = Round.of(everyone, np.full(group.size, NETWORK_SWITCH), 1 / group.per_node)
    return [*inside, up, up.back(), *inside]


def nvls(op: Op, group: Group) -> list[Round]:
    """Reduction and multicast by NVSwitch: each member sends its buffer and its part of the result once, and receives as
    much."""
    part = 1 / group.per_node
    out = {"all_reduce": 1 + part, "reduce_scatter": 1.0, "all_gather": part}[op]
    into = {"all_reduce": 1 + part, "reduce_scatter": part, "all_gather": 1.0}[op]
    return [_over_node_switch(group, out, into)]


def nvls_tree(op: Op, group: Group) -> list[Round]:
    """Reduction by NVSwitch in each node, sums over nodes by two binary trees, and multicast by NVSwitch."""
    between = [step for step in tree(op, group) if (group.node_of[step.source] != group.node_of[step.target]).any()]
    if group.per_node == 1:
        return between
    up = _over_node_switch(group, 1.0, 1 / group.per_node)
    return [up, *between, up.back()]


def _over_node_switch(group: Group, out: float, into: float) -> Round:
    """A round in which every member sends a share `out` to its node's switch and receives `into`."""
    everyone, switch = np.arange(group.size), np.full(group.size, NODE_SWITCH)
    shares = np.repeat([out, into], group.size)
    return Round(np.concatenate([everyone, switch]), np.concatenate([switch, everyone]), shares)


def pat(op: Op, group: Group) -> list[Round]:
    """Parallel aggregated trees (NVIDIA, "PAT", 2025): a binomial tree from every member at once, whose messages to the same
    member are joined, so that an all-gather over n members takes ⌈log2 n⌉ steps. A reduce-scatter is the reverse."""
    everyone = np.arange(group.size)
    distances = [1 << i for i in reversed(range((group.size - 1).bit_length()))]
    # the member at a distance gets what the sender has: its own part, and parts that came over greater distances
    parts = [min(-(-group.size // (2 * distance)), (group.size - distance - 1) // (2 * distance) + 1) for distance in distances]
    rounds = [
        Round.of(everyone, (everyone + distance) % group.size, count / group.size)
        for distance, count in zip(distances, parts, strict=True)
    ]
    return rounds if op == "all_gather" else [step.back() for step in reversed(rounds)]


def pairwise(op: Op, group: Group) -> list[Round]:
    """Concurrent messages from every member to every other (alltoall), or to the next one (sendrecv)."""
    if group.size > _MAX_ALLTOALL_RANKS and op == "alltoall":
        raise InputError(f"an alltoall over {group.size} ranks is too large; give at most {_MAX_ALLTOALL_RANKS}")
    everyone = np.arange(group.size)
    share, distances = (1.0, range(1, 2)) if op == "sendrecv" else (1 / group.size, range(1, group.size))
    return [Round.of(everyone, (everyone + distance) % group.size, share) for distance in distances]


def linear(op: Op, group: Group) -> list[Round]:
    """Concurrent messages from all other members to the first one (gather), or back (scatter)."""
    others = np.arange(1, group.size)
    gather = Round.of(others, np.zeros_like(others), 1 / group.size)
    return [gather if op == "gather" else gather.back()]


def _there_and_back(rounds: list[Round]) -> list[Round]:
    return [*rounds, *(step.back() for step in reversed(rounds))]


def _inside_ring(group: Group) -> list[Round]:
    """A ring in each node, with a part of the data in each step. Raises InputError if the nodes' numbers of members differ."""
    if not group.is_even:
        raise InputError("this algorithm needs the same number of ranks on each node; use ring")
    per_node = group.per_node
    if per_node == 1:
        return []
    everyone = np.arange(group.size)
    after = everyone - everyone % per_node + (everyone + 1) % per_node
    return [Round.of(everyone, after, 1 / per_node, times=per_node - 1)]


def _chained(group: Group, between: list[Round]) -> list[Round]:
    """Rounds of chains to the first member of each node and of `between`, then the reverse of both."""
    chain = []
    for slot in range(group.per_node - 1, 0, -1):
        source = group.first[group.members > slot] + slot
        chain.append(Round.of(source, source - 1, 1.0))
    return _there_and_back([*chain, *between])


def _parents(count: int) -> NDArray[np.int64]:
    """Parent of each vertex of a binary tree whose leaves are the odd numbers; −1 for the root 0."""
    numbers = np.arange(count)
    lowest = numbers & -numbers
    above = (numbers ^ lowest) | (lowest << 1)
    parents = np.where(above < count, above, numbers ^ lowest)
    if count:
        parents[0] = -1
    return parents


def _tree_rounds(trees: Sequence[NDArray[np.int64]], members: NDArray[np.int64]) -> list[Round]:
    """Rounds from the leaves to the roots, one per level; the trees share the data evenly.

    trees: parents of the vertices; members: the member at each vertex.
    """
    messages: dict[int, list[tuple[int, int]]] = {}
    for parents in trees:
        for vertex in range(len(parents)):
            depth, above = 0, vertex
            while parents[above] >= 0:
                depth, above = depth + 1, int(parents[above])
            if depth:
                messages.setdefault(depth, []).append((int(members[vertex]), int(members[parents[vertex]])))
    return [
        Round.of([s for s, _ in messages[depth]], [t for _, t in messages[depth]], 1 / len(trees))
        for depth in sorted(messages, reverse=True)
    ]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of collectives.

    rounds: its messages for an operation and a group. pipelined: operations whose data passes through all rounds in chunks.
    at_once: whether all rounds are concurrent.
    """

    rounds: Callable[[Op, Group], list[Round]]
    ops: tuple[Op, ...]
    pipelined: tuple[Op, ...] = ()
    at_once: bool = False


ALGORITHMS: Final[dict[str, Algorithm]] = {
    "ring": Algorithm(ring, ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"), ("broadcast", "reduce")),
    "whole_ring": Algorithm(whole_ring, ("reduce_scatter",)),
    "ring_gather": Algorithm(ring_gather, ("reduce",)),
    "tree": Algorithm(tree, ("all_reduce",), ("all_reduce",)),
    "binary_tree": Algorithm(binary_tree, ("all_reduce",), ("all_reduce",)),
    "binomial": Algorithm(binomial, ("broadcast", "reduce")),
    "halving_doubling": Algorithm(halving_doubling, ("all_reduce", "reduce_scatter", "all_gather")),
    "hierarchical": Algorithm(hierarchical, ("all_reduce", "reduce_scatter", "all_gather")),
    "in_network": Algorithm(in_network, ("all_reduce",)),
    "nvls": Algorithm(nvls, ("all_reduce", "reduce_scatter", "all_gather")),
    "nvls_tree": Algorithm(nvls_tree, ("all_reduce",), ("all_reduce",)),
    "pat": Algorithm(pat, ("reduce_scatter", "all_gather"), ("reduce_scatter", "all_gather")),
    "pairwise": Algorithm(pairwise, ("alltoall", "sendrecv"), at_once=True),
    "linear": Algorithm(linear, ("gather", "scatter"), at_once=True),
}


def names_for(op: Op, among: Iterable[str] = ALGORITHMS) -> list[str]:
    """Names of the algorithms that implement an operation."""
    return [name for name in among if op in ALGORITHMS[name].ops]
