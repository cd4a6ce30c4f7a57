"""Teams: the ranks that take part in a collective together, and by what number spans tell one team from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# Of a mesh's axes, in the order of their numbers; teams along different axes may have the same first rank.
_AXES: Final = ("all", "worker", "stage", "tensor", "context", "expert", "shard", "replica", "node")


@dataclass(frozen=True)
class Team:
    """Ranks that share a process group, in the group's order. number: the same on all of them, and no other team's."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    number: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def place(self) -> int:
        """This rank's, among them."""
        return self.ranks.index(dist.get_rank())

    @property
    def ahead(self) -> int:
        """The rank after this one; the first of them is after the last."""
        return self.ranks[(self.place + 1) % self.size]

    @property
    def behind(self) -> int:
        """The rank before this one."""
        return self.ranks[self.place - 1]

    @classmethod
    def everybody(cls) -> Self:
        return cls(None, tuple(range(dist.get_world_size())), 0)

    @classmethod
    def along(cls, mesh: DeviceMesh, axis: str) -> Self:
        """The ranks that differ from this one along a mesh's axis alone."""
        group = mesh.get_group(axis)
        return cls._numbered(group, dist.get_process_group_ranks(group), axis)

    @classmethod
    def of(cls, teams: Sequence[Sequence[int]], axis: str) -> Self:
        """This rank's among several that have no rank in common. All ranks must call it, with the same teams."""
        own: Self | None = None
        for ranks in teams:
            group = dist.new_group(list(ranks))
            if dist.get_rank() in ranks:
                own = cls._numbered(group, ranks, axis)
        assert own is not None, "every rank is in one of the teams"
        return own

    @classmethod
    def _numbered(cls, group: dist.ProcessGroup | None, ranks: Sequence[int], axis: str) -> Self:
        number = _AXES.index(axis) * dist.get_world_size() + min(ranks)
        return cls(group, tuple(ranks), number)
