"""Correspondence between the ranks of a measured run and the rank classes of a predicted one, by the names of ranks.

Predicted runs fold equivalent ranks: '3 workers', 'stage 0 (4 workers)'; measured runs name every rank: 'worker 2 stage 0'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import Run

_NUMBERED: Final = re.compile(r"\b([a-z]+) (\d+)\b")
_MANY: Final = re.compile(r"^(\d+) [a-z]+s$")
_FOLDED: Final = re.compile(r"\((\d+) workers\)")
_SERVERS: Final = re.compile(r"\bservers?\b")


@dataclass(frozen=True)
class Name:
    """Parsed name of a rank, or of a class of equivalent ranks.

    ranks: their number. at: number on each axis, {"worker": 0, "stage": 1}; for a class, on the axes that its ranks have in
    common.
    """

    ranks: int
    at: Mapping[str, int]
    is_server: bool

    @classmethod
    def of(cls, text: str, run: Run) -> Name:
        """Parses a name; a name in another form is that of one rank without axes."""
        is_server = _SERVERS.search(text) is not None
        at = {axis: int(number) for axis, number in _NUMBERED.findall(text)}
        if is_server and run.origin == "predicted" and "server" in at:
            # predicted servers are numbered by their rank
            at["server"] -= run.compute_ranks
        many = _MANY.match(text) or _FOLDED.search(text)
        if many is None:
            return cls(1, at, is_server)
        # the worker number in the name of a class is that of its first rank
        return cls(int(many.group(1)), {axis: number for axis, number in at.items() if axis == "stage"}, is_server)

    def holds(self, other: Name) -> bool:
        """Whether the axes that both names give agree."""
        same = all(other.at.get(axis, number) == number for axis, number in self.at.items())
        return same and self.is_server == other.is_server


def names(run: Run) -> list[Name]:
    """Parsed names of a run's ranks, in the order of its spans' ranks."""
    count = len(run.rank_names) or (0 if run.spans is None else int(run.spans.rank.max(initial=-1)) + 1)
    texts = run.rank_names or [f"server {rank}" if rank >= run.compute_ranks else "" for rank in range(count)]
    return [Name.of(text, run) for text in texts]


def multiplicity(run: Run) -> NDArray[np.int64]:
    """Number of ranks for which each rank of a run stands, shape (ranks,). Ranks that share a layer are one class, named as one
    rank."""
    parsed = names(run)
    count = np.array([name.ranks for name in parsed], dtype=np.int64)
    training = np.array([not name.is_server for name in parsed], dtype=bool)
    named = int(count[training].sum())
    if named and run.compute_ranks % named == 0:
        count[training] *= run.compute_ranks // named
    return count


def servers(run: Run) -> NDArray[np.bool_]:
    """Whether each of a run's ranks is a server, shape (ranks,)."""
    return np.array([name.is_server for name in names(run)], dtype=bool)


def class_of_ranks(predicted: Run, measured: Run) -> NDArray[np.int64]:
    """Predicted rank class of each rank of the measured run, shape (ranks,); −1 for none."""
    classes, ranks = names(predicted), names(measured)
    room, taken = multiplicity(predicted), multiplicity(measured)
    result = np.full(len(ranks), -1, dtype=np.int64)
    # classes of one rank first, then larger ones are filled
    for number in sorted(range(len(classes)), key=lambda n: (classes[n].ranks, n)):
        for rank in _in_order(ranks):
            if result[rank] < 0 and taken[rank] <= room[number] and classes[number].holds(ranks[rank]):
                result[rank] = number
                room[number] -= taken[rank]
    for rank in np.flatnonzero(result < 0).tolist():
        # a class that only one side splits
        matching = (number for number, name in enumerate(classes) if name.holds(ranks[rank]))
        result[rank] = next(matching, -1)
    return result


def _in_order(ranks: Sequence[Name]) -> list[int]:
    """Ranks sorted by worker, the order in which classes count them."""
    return sorted(range(len(ranks)), key=lambda rank: (ranks[rank].at.get("worker", 0), rank))
