"""Teams: the ranks that take part in a collective, and the number that identifies a team in spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# Axes of teams, by whose index teams along different axes with the same first rank get different numbers.
_AXES: Final = (
    "all",
    "worker",
    "stage",
    "tensor",
    "context",
    "expert",
    "shard",
    "replica",
    "node",
    "node replies",
    "experts of a rail",
    "experts of a node",
    "copies",
    "shards of a worker",
    "shards of all",
    "tables",
    "features",
)


@dataclass(frozen=True)
class Team:
    """Ranks that share a process group, in the group's order. number: equal on all of them, and unique to the team."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    number: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def place(self) -> int:
        """This rank's index in the team."""
        return self.ranks.index(dist.get_rank())

    @property
    def ahead(self) -> int:
        """The next rank of the team, cyclically."""
        return self.ranks[(self.place + 1) % self.size]

    @property
    def behind(self) -> int:
        """The previous rank of the team, cyclically."""
        return self.ranks[self.place - 1]

    @classmethod
    def everybody(cls) -> Self:
        """The team of all ranks."""
        return cls(None, tuple(range(dist.get_world_size())), 0)

    @classmethod
    def along(cls, mesh: DeviceMesh, axis: str) -> Self:
        """The team of the ranks that differ from this one only along an axis of the mesh."""
        group = mesh.get_group(axis)
        return cls.numbered(group, dist.get_process_group_ranks(group), axis)

    @classmethod
    def of(cls, teams: Sequence[Sequence[int]], axis: str) -> Self:
        """This rank's team among several disjoint ones. All ranks must call it with the same teams."""
        own: Self | None = None
        for ranks in teams:
            group = dist.new_group(list(ranks))
            if dist.get_rank() in ranks:
                own = cls.numbered(group, ranks, axis)
        assert own is not None, "every rank is in one of the teams"
        return own

    @classmethod
    def numbered(cls, group: dist.ProcessGroup | None, ranks: Sequence[int], axis: str) -> Self:
        """The team of a group. axis: along which it lies; teams of an axis with the same first rank have the same number."""
        number = _AXES.index(axis) * dist.get_world_size() + min(ranks)
        return cls(group, tuple(ranks), number)
