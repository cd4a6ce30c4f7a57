"""Replicas of a captured job among its ranks, and the same job with another number of replicas.

Ranks are numbered with replicas on one axis: rank = (outer · replicas + replica) · inner + rest. Groups contain all replicas
(data parallelism) or one of them (parallelism inside a replica). Only then does another number of replicas change nothing but
the sizes of groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaleproof.simulator.common.errors import FieldError

_FIELD = ("strategy", "workers")


@dataclass(frozen=True)
class Replicas:
    """The axis of the replicas. count: number of them; inner: ranks between neighbouring replicas."""

    count: int
    inner: int = 1

    @classmethod
    def of(cls, count: int, world: int, groups: Iterable[Sequence[int]]) -> Replicas:
        """The axis that groups of `count` evenly spaced ranks show; without any, neighbouring ranks are neighbouring
        replicas."""
        for ranks in groups:
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 0
            if (
                stride
                and len(ranks) == count < world
                and list(ranks) == list(range(ranks[0], ranks[0] + count * stride, stride))
            ):
                return cls(count, stride)
        return cls(count)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Coordinates of a rank: outer, replica, rest."""
        outer, within = divmod(rank, self.count * self.inner)
        return outer, *divmod(within, self.inner)

    def rank(self, outer: int, replica: int, rest: int) -> int:
        """The rank with these coordinates."""
        return (outer * self.count + replica) * self.inner + rest

    def moved(self, rank: int, to: Replicas) -> int:
        """A rank of the first replicas, with the same coordinates among others."""
        outer, replica, rest = self.place(rank)
        return to.rank(outer, self._same(replica, to), rest)

    def _same(self, replica: int, to: Replicas) -> int:
        """The corresponding replica among others: the first ones stay the first, the last ones the last."""
        return min(replica, to.count - 1) if 2 * replica < self.count else max(0, to.count - self.count + replica)

    def resized(self, ranks: Sequence[int], to: Replicas) -> list[int]:
        """The corresponding ranks among another number of replicas. Raises FieldError for a group of some of the replicas."""
        if to == self:
            return list(ranks)
        replicas: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for outer, replica, rest in map(self.place, ranks):
            replicas[outer, rest].append(replica)
        result = []
        for (outer, rest), present in replicas.items():
            if len(present) == self.count:
                result += [to.rank(outer, replica, rest) for replica in range(to.count)]
            elif len(present) == 1:
                result.append(to.rank(outer, self._same(present[0], to), rest))
            else:
                groups = f"groups of {len(present)} of the {self.count} workers communicate"
                raise FieldError(_FIELD, f"{groups}; capture the script again on as many ranks")
        return sorted(result)

    def resized_classes(self, classes: Sequence[Sequence[int]], to: Replicas) -> list[list[int]]:
        """The ranks of all classes among another number of replicas: single ranks stay single, and the largest class grows.

        Raises FieldError if a class would be empty.
        """
        if to == self:
            return [list(ranks) for ranks in classes]
        largest: dict[tuple[int, int], int] = {}
        for number in sorted(range(len(classes)), key=lambda number: len(classes[number])):
            largest |= dict.fromkeys(((outer, rest) for outer, _, rest in map(self.place, classes[number])), number)
        owner = {
            self.moved(rank, to): number
            for number, ranks in enumerate(classes)
            for rank in ranks
            if largest[self.place(rank)[0], self.place(rank)[2]] != number
        }
        result: list[list[int]] = [[] for _ in classes]
        for (outer, rest), grows in largest.items():
            for rank in (to.rank(outer, replica, rest) for replica in range(to.count)):
                result[owner.get(rank, grows)].append(rank)
        if not all(result):
            raise FieldError(
                _FIELD, f"{to.count} workers are too few for ranks that differ; capture the script again on as many"
            )
        return [sorted(ranks) for ranks in result]
