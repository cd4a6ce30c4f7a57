"""Groups of ranks, the operations over them, and rounds of messages between their members."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
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
    node is rank // devices. axes: sizes of the torus that the devices of a node form, for algorithms that use its axes."""

    ranks: range | tuple[int, ...]
    devices: int
    axes: tuple[int, ...] = ()

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

    @functools.cached_property
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
    def box(self) -> tuple[int, ...]:
        """Sizes of the box of one torus whose places the members are, along axes with more than one place; () if they are no
        such box."""
        if not self.axes or self.nodes > 1 or self.size == 1:
            return ()
        sizes = tuple(len(np.unique(place)) for place in np.unravel_index(self.device_of, self.axes))
        return tuple(size for size in sizes if size > 1) if math.prod(sizes) == self.size else ()

    @functools.cached_property
    def first(self) -> NDArray[np.int64]:
        """The first member on each node; shape (nodes,)."""
        return np.searchsorted(self.node_of, np.arange(self.nodes))

    @functools.cached_property
    def members(self) -> NDArray[np.int64]:
        """Number of members on each node; shape (nodes,)."""
        return np.bincount(self.node_of)

    @functools.cached_property
    def on_first_nodes(self) -> Group:
        """The group of the same devices on the first nodes."""
        ranks = self.node_of * self.devices + self.device_of
        return self if (ranks == self._numbers).all() else Group.of(ranks.tolist(), self.devices)

    @functools.cached_property
    def nodes(self) -> int:
        """Number of nodes with members."""
        return len(self.node_numbers)

    @functools.cached_property
    def per_node(self) -> int:
        """Largest number of members on a node."""
        return int(self.members.max())

    @functools.cached_property
    def is_even(self) -> bool:
        """Whether all nodes have the same number of members."""
        return bool((self.members == self.per_node).all())


class LinkLevel(IntEnum):
    """The links that limit a collective: those inside a node, or those between nodes."""

    NODE = 0
    NETWORK = 1

    @classmethod
    def of(cls, group: Group) -> LinkLevel:
        """The links that limit collectives of a group."""
        return cls.NETWORK if group.nodes > 1 else cls.NODE


def bus_factor(op: Op, ranks: int) -> float:
    """nccl-tests' bus bandwidth, which is comparable with link bandwidths, over its algorithm bandwidth."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("reduce_scatter", "all_gather", "alltoall", "gather", "scatter") else 1.0


def passed_bytes(op: Op, group: Group, size_bytes: float) -> float:
    """Bytes that a collective of `size_bytes` moves through each member of a group."""
    return bus_factor(op, group.size) * size_bytes if group.size > 1 else 0.0
