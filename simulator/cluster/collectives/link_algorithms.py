"""Algorithms of collectives that send messages from rank to rank over links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.groups import Group, Op, Round
from scaleproof.simulator.common.errors import InputError

# ranks of an alltoall; its messages need 2 GiB of memory
_MAX_ALLTOALL_RANKS: Final = 8192


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


def returning_ring(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter around a ring in which each part passes all members and returns to its own: gradients of keys in ring
    attention."""
    everyone = np.arange(group.size)
    return [Round.of(everyone, (everyone + 1) % group.size, 1 / group.size, times=group.size)]


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
    return chained(group, _tree_rounds([parents, other], group.first))


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
    inside, per_node, nodes = inside_ring(group), group.per_node, group.nodes
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + per_node) % group.size, 1 / group.size, times=nodes - 1)
    between = [lap] if nodes > 1 else []
    scatter, gather = [*inside, *between], [*between, *inside]
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": scatter + gather}[op]


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


def in_turns(op: Op, group: Group) -> list[Round]:
    """gloo's all-gather and all-to-all between two members, which share a connection.

    Each sends before it announces that it can receive (gloo/allgather.cc, gloo/alltoall.cc). The announcement of the later one
    is queued behind what it sends, and the other waits for it; an all-gather sends two halves. Raises InputError for more
    members.
    """
    if group.size > 2:
        raise InputError("two ranks take turns; use ring or pairwise for more")
    one_way, both_ways = ([0], [1]), ([0, 1], [1, 0])
    if op == "alltoall":
        return [Round.of(*one_way, 1 / 2), Round.of(*one_way, 1 / 2).back()]
    return [Round.of(*one_way, 1 / 4), Round.of(*both_ways, 1 / 4), Round.of(*one_way, 1 / 4).back()]


def linear(op: Op, group: Group) -> list[Round]:
    """Concurrent messages from all other members to the first one (gather), or back (scatter)."""
    others = np.arange(1, group.size)
    gather = Round.of(others, np.zeros_like(others), 1 / group.size)
    return [gather if op == "gather" else gather.back()]


def _there_and_back(rounds: list[Round]) -> list[Round]:
    return [*rounds, *(step.back() for step in reversed(rounds))]


def inside_ring(group: Group) -> list[Round]:
    """A ring in each node, with a part of the data in each step. Raises InputError if the nodes' numbers of members differ."""
    if not group.is_even:
        raise InputError("this algorithm needs the same number of ranks on each node; use ring")
    per_node = group.per_node
    if per_node == 1:
        return []
    everyone = np.arange(group.size)
    after = everyone - everyone % per_node + (everyone + 1) % per_node
    return [Round.of(everyone, after, 1 / per_node, times=per_node - 1)]


def chained(group: Group, between: list[Round]) -> list[Round]:
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
