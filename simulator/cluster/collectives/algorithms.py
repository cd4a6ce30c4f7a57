"""What each algorithm of a collective sends: rounds of messages, one after another, between the members of a group.

Costs, loads of links and message-by-message programs all come from these descriptions. Sizes are nccl-tests' `size`: of the
whole buffer, that is of what an all_gather receives and of what a reduce_scatter sends; of what each rank holds in an
alltoall; of one message in a sendrecv; of the root's buffer in a gather and a scatter.
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

# In place of a member: the switch of its node, or of the network, which adds up what it gets or sends to all.
NODE_SWITCH: Final = -1
NETWORK_SWITCH: Final = -2


# as many take 2 GiB
_MOST_AT_ONCE: Final = 8192

_Numbers = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Round:
    """Messages that are sent together; `times` such rounds follow one another.

    source, target: members of the group by number, or a switch; share: of the collective's size; shape (messages,).
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]
    times: int = 1

    @classmethod
    def of(cls, source: _Numbers, target: _Numbers, share: float, times: int = 1) -> Round:
        """Alike messages."""
        sources, targets = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
        return cls(sources, targets, np.broadcast_to(np.float64(share), len(sources)), times)

    def back(self) -> Round:
        """The same messages the other way."""
        return Round(self.target, self.source, self.share, self.times)


@dataclass(frozen=True)
class Group:
    """The members of a collective: ranks in ascending order, a range if they are evenly spaced, on nodes of `devices` devices
    (rank // devices is the node)."""

    ranks: range | tuple[int, ...]
    devices: int

    @classmethod
    def of(cls, ranks: int | Sequence[int], devices: int) -> Group:
        """The first ranks, or those listed. Raises InputError where there are none, or one is repeated."""
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
        return len(self.ranks)

    @functools.cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """The ranks; of a range numpy would ask for one after the other."""
        one = self.ranks
        return np.arange(one.start, one.stop, one.step) if isinstance(one, range) else np.array(one, dtype=np.int64)

    @functools.cached_property
    def node_numbers(self) -> NDArray[np.int64]:
        """The nodes that have members, ascending."""
        return np.unique(self._numbers // self.devices)

    @functools.cached_property
    def node_of(self) -> NDArray[np.int64]:
        """Which of those nodes each member is on, counted from zero; shape (size,)."""
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
        """How many members each node has; shape (nodes,)."""
        return np.bincount(self.node_of)

    @functools.cached_property
    def shape(self) -> tuple[bytes, bytes]:
        """Equal for groups that have as many members on the same devices, whichever nodes they are on."""
        return self.members.tobytes(), self.device_of.tobytes()

    @property
    def nodes(self) -> int:
        return len(self.node_numbers)

    @functools.cached_property
    def per_node(self) -> int:
        """The most members that a node has."""
        return int(self.members.max())

    @property
    def is_even(self) -> bool:
        """Whether all nodes have as many members."""
        return bool((self.members == self.per_node).all())


def bus_factor(op: Op, ranks: int) -> float:
    """nccl-tests' bus bandwidth over its algorithm bandwidth: what makes it comparable with the links' speed."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("reduce_scatter", "all_gather", "alltoall", "gather", "scatter") else 1.0


def ring(op: Op, group: Group) -> list[Round]:
    """Every member sends to the next, around a ring (Patarasuk & Yuan 2009); broadcast and reduce go once along it."""
    if op in ("broadcast", "reduce"):
        steps = [Round.of([i], [i + 1], 1.0) for i in range(group.size - 1)]
        return steps if op == "broadcast" else [step.back() for step in reversed(steps)]
    around = np.arange(group.size)
    lap = Round.of(around, (around + 1) % group.size, 1 / group.size, times=group.size - 1)
    return [lap, lap] if op == "all_reduce" else [lap]


def whole_ring(op: Op, group: Group) -> list[Round]:
    """An allreduce around a ring, of which each member keeps its part: how gloo does a reduce_scatter."""
    return ring("all_reduce", group)


def ring_gather(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter around a ring, then all parts to the first member: how gloo does a reduce."""
    return [*ring("reduce_scatter", group), *linear("gather", group)]


def tree(op: Op, group: Group) -> list[Round]:
    """A chain in each node, and between nodes two binary trees for half the data each (Sanders et al. 2009).

    What is an inner node of one tree is a leaf of the other.
    """
    parents = _parents(group.nodes)
    if group.nodes % 2:
        other = (np.roll(parents, 1) + 1) % group.nodes
        other[np.roll(parents, 1) < 0] = -1
    else:
        other = np.where(parents[::-1] < 0, -1, group.nodes - 1 - parents[::-1])
    return _chained(group, _tree_rounds([parents, other], group.first))


def binary_tree(op: Op, group: Group) -> list[Round]:
    """One binary tree over all members, up to the root and down again."""
    return _there_and_back(_tree_rounds([_parents(group.size)], np.arange(group.size)))


def binomial(op: Op, group: Group) -> list[Round]:
    """In every round all who have it send it on, to as many others; a reduce is the same backwards."""
    rounds = []
    for distance in (1 << i for i in range((group.size - 1).bit_length())):
        source = np.arange(min(distance, group.size - distance))
        rounds.append(Round.of(source, source + distance, 1.0))
    return rounds if op == "broadcast" else [step.back() for step in reversed(rounds)]


def halving_doubling(op: Op, group: Group) -> list[Round]:
    """Recursive halving, then doubling, near partners first (Thakur et al. 2005); a reduce_scatter is the first half of it, an
    all_gather the second.

    Members beyond a power of two first hand their data to a partner, and get the result from it.
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
    """A reduce-scatter by a ring in each node, then by rings between nodes, of the members with the same number each, over a
    part of the data; an all-gather is the same backwards, an allreduce both. So all network cards of a node are used."""
    inside, per_node, nodes = _inside_ring(group), group.per_node, group.nodes
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + per_node) % group.size, 1 / group.size, times=nodes - 1)
    between = [lap] if nodes > 1 else []
    scatter, gather = [*inside, *between], [*between, *inside]
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": scatter + gather}[op]


def in_network(op: Op, group: Group) -> list[Round]:
    """Reduce-scatter inside each node, sums of the parts in the network's switches (SHARP), all-gather inside."""
    inside, everyone = _inside_ring(group), np.arange(group.size)
    if group.nodes == 1:
        return [*inside, *inside]
    up = Round.of(everyone, np.full(group.size, NETWORK_SWITCH), 1 / group.per_node)
    return [*inside, up, up.back(), *inside]


def nvls(op: Op, group: Group) -> list[Round]:
    """NVSwitch reduces and multicasts: each member sends its buffer once, and its part of the result, and receives alike."""
    part = 1 / group.per_node
    out = {"all_reduce": 1 + part, "reduce_scatter": 1.0, "all_gather": part}[op]
    into = {"all_reduce": 1 + part, "reduce_scatter": part, "all_gather": 1.0}[op]
    return [_over_node_switch(group, out, into)]


def nvls_tree(op: Op, group: Group) -> list[Round]:
    """NVSwitch reduces in each node, two binary trees add up between nodes, NVSwitch multicasts."""
    between = [step for step in tree(op, group) if (group.node_of[step.source] != group.node_of[step.target]).any()]
    if group.per_node == 1:
        return between
    up = _over_node_switch(group, 1.0, 1 / group.per_node)
    return [up, *between, up.back()]


def _over_node_switch(group: Group, out: float, into: float) -> Round:
    """Every member sends a share `out` to its node's switch, and gets `into`."""
    everyone, switch = np.arange(group.size), np.full(group.size, NODE_SWITCH)
    shares = np.repeat([out, into], group.size)
    return Round(np.concatenate([everyone, switch]), np.concatenate([switch, everyone]), shares)


def pairwise(op: Op, group: Group) -> list[Round]:
    """Every member sends to every other (alltoall), or to the next one (sendrecv); all at once."""
    if group.size > _MOST_AT_ONCE and op == "alltoall":
        raise InputError(f"an alltoall over {group.size} ranks; their messages can be counted for {_MOST_AT_ONCE} at most")
    everyone = np.arange(group.size)
    share, distances = (1.0, range(1, 2)) if op == "sendrecv" else (1 / group.size, range(1, group.size))
    return [Round.of(everyone, (everyone + distance) % group.size, share) for distance in distances]


def linear(op: Op, group: Group) -> list[Round]:
    """All send their part to the first member (gather), or get it from there (scatter); all at once."""
    others = np.arange(1, group.size)
    gather = Round.of(others, np.zeros_like(others), 1 / group.size)
    return [gather if op == "gather" else gather.back()]


def _there_and_back(rounds: list[Round]) -> list[Round]:
    return [*rounds, *(step.back() for step in reversed(rounds))]


def _inside_ring(group: Group) -> list[Round]:
    """A ring in each node, over a part of the data each step. Raises InputError where nodes have unlike numbers of members."""
    if not group.is_even:
        raise InputError("this algorithm needs as many ranks on each node; use ring")
    per_node = group.per_node
    if per_node == 1:
        return []
    everyone = np.arange(group.size)
    after = everyone - everyone % per_node + (everyone + 1) % per_node
    return [Round.of(everyone, after, 1 / per_node, times=per_node - 1)]


def _chained(group: Group, between: list[Round]) -> list[Round]:
    """Chains to the first member of each node, `between` from there, and all the way back."""
    chain = []
    for slot in range(group.per_node - 1, 0, -1):
        source = group.first[group.members > slot] + slot
        chain.append(Round.of(source, source - 1, 1.0))
    return _there_and_back([*chain, *between])


def _parents(count: int) -> NDArray[np.int64]:
    """Of each vertex of a binary tree whose leaves are the odd ones; −1 for the root, 0."""
    numbers = np.arange(count)
    lowest = numbers & -numbers
    above = (numbers ^ lowest) | (lowest << 1)
    parents = np.where(above < count, above, numbers ^ lowest)
    if count:
        parents[0] = -1
    return parents


def _tree_rounds(trees: Sequence[NDArray[np.int64]], members: NDArray[np.int64]) -> list[Round]:
    """From the leaves to the roots, a round for each level; trees share the data evenly. `members` stand for the vertices."""
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
    """rounds: what it sends for an operation. pipelined: the operations for which data passes in pieces, each
    following the one before through all rounds. at_once: no round waits for another."""

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
    "pairwise": Algorithm(pairwise, ("alltoall", "sendrecv"), at_once=True),
    "linear": Algorithm(linear, ("gather", "scatter"), at_once=True),
}


def names_for(op: Op, among: Iterable[str] = ALGORITHMS) -> list[str]:
    """The algorithms that do an operation."""
    return [name for name in among if op in ALGORITHMS[name].ops]
