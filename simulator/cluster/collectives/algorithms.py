"""Algorithms of collectives as consecutive rounds of messages between the members of a group.

Costs, link loads and message-by-message programs are derived from these descriptions. A collective's size is nccl-tests'
`size`: the whole buffer, which is what an all_gather receives and what a reduce_scatter sends; each rank's buffer in an
alltoall; one message in a sendrecv; the root's buffer in a gather or a scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, NODE_SWITCH, OPS, Group, Op, Round, bus_factor
from scaleproof.simulator.cluster.collectives.link_algorithms import (
    binary_tree,
    binomial,
    halving_doubling,
    hierarchical,
    in_turns,
    linear,
    pairwise,
    pat,
    returning_ring,
    ring,
    ring_gather,
    tree,
    whole_ring,
)
from scaleproof.simulator.cluster.collectives.switch_algorithms import (
    collnet_chain,
    collnet_direct,
    in_network,
    nvls,
    nvls_tree,
    symmetric_direct,
    symmetric_ll,
)

__all__ = [
    "ALGORITHMS",
    "NETWORK_SWITCH",
    "NODE_SWITCH",
    "OPS",
    "Algorithm",
    "Group",
    "Op",
    "Round",
    "bus_factor",
    "names_for",
]

# Operations in which every member ends with a part of the result, or all of it.
_SHARED: Final[tuple[Op, ...]] = ("all_reduce", "reduce_scatter", "all_gather")


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
    "returning_ring": Algorithm(returning_ring, ("reduce_scatter",)),
    "ring_gather": Algorithm(ring_gather, ("reduce",)),
    "in_turns": Algorithm(in_turns, ("all_gather", "alltoall")),
    "tree": Algorithm(tree, ("all_reduce",), ("all_reduce",)),
    "binary_tree": Algorithm(binary_tree, ("all_reduce",), ("all_reduce",)),
    "binomial": Algorithm(binomial, ("broadcast", "reduce")),
    "halving_doubling": Algorithm(halving_doubling, _SHARED),
    "hierarchical": Algorithm(hierarchical, _SHARED),
    "in_network": Algorithm(in_network, ("all_reduce",)),
    "collnet_direct": Algorithm(collnet_direct, _SHARED, _SHARED),
    "collnet_chain": Algorithm(collnet_chain, ("all_reduce",), ("all_reduce",)),
    "nvls": Algorithm(nvls, _SHARED, _SHARED),
    "nvls_tree": Algorithm(nvls_tree, ("all_reduce",), ("all_reduce",)),
    "symmetric_ll": Algorithm(symmetric_ll, _SHARED),
    "symmetric_direct": Algorithm(symmetric_direct, _SHARED),
    "symmetric_multimem": Algorithm(nvls, _SHARED),
    "pat": Algorithm(pat, ("reduce_scatter", "all_gather"), ("reduce_scatter", "all_gather")),
    "pairwise": Algorithm(pairwise, ("alltoall", "sendrecv"), at_once=True),
    "linear": Algorithm(linear, ("gather", "scatter"), at_once=True),
}


def names_for(op: Op, among: Iterable[str] = ALGORITHMS) -> list[str]:
    """Names of the algorithms that implement an operation."""
    return [name for name in among if op in ALGORITHMS[name].ops]
