"""Members: which ranks of one run a rank class of another stands for, by what the ranks are called.

Predicted runs fold alike ranks: '3 workers', 'stage 0 (4 alike)'; measured runs name every one: 'worker 2 stage 0'.
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
_ALIKE: Final = re.compile(r"\((\d+) alike\)")
_SERVERS: Final = re.compile(r"\bservers?\b")


@dataclass(frozen=True)
class Name:
    """What a rank, or a class of alike ones, is called.

    ranks: how many there are. at: its number on each axis, {"worker": 0, "stage": 1}; of several, on those they have in common.
    """

    ranks: int
    at: Mapping[str, int]
    is_server: bool

    @classmethod
    def of(cls, text: str, run: Run) -> Name:
        """Raises nothing: a name of another kind is of one rank, at nothing."""
        is_server = _SERVERS.search(text) is not None
        at = {axis: int(number) for axis, number in _NUMBERED.findall(text)}
        if is_server and run.origin == "predicted" and "server" in at:
            # predicted servers are called by their rank
            at["server"] -= run.compute_ranks
        many = _MANY.match(text) or _ALIKE.search(text)
        if many is None:
            return cls(1, at, is_server)
        # of these the worker that is named is the first
        return cls(int(many.group(1)), {axis: number for axis, number in at.items() if axis == "stage"}, is_server)

    def holds(self, other: Name) -> bool:
        """Whether nothing that both say of where they are speaks against it."""
        same = all(other.at.get(axis, number) == number for axis, number in self.at.items())
        return same and self.is_server == other.is_server


def names(run: Run) -> list[Name]:
    """What a run's ranks are, in the order of its spans' ranks."""
    count = len(run.rank_names) or (0 if run.spans is None else int(run.spans.rank.max(initial=-1)) + 1)
    texts = run.rank_names or [f"server {rank}" if rank >= run.compute_ranks else "" for rank in range(count)]
    return [Name.of(text, run) for text in texts]


def multiplicity(run: Run) -> NDArray[np.int64]:
    """How many ranks each of a run's stands for. Those that split a layer are one class that is named as one rank."""
    found = names(run)
    count = np.array([name.ranks for name in found], dtype=np.int64)
    training = np.array([not name.is_server for name in found], dtype=bool)
    told = int(count[training].sum())
    if told and run.compute_ranks % told == 0:
        count[training] *= run.compute_ranks // told
    return count


def servers(run: Run) -> NDArray[np.bool_]:
    """Which of a run's ranks are servers."""
    return np.array([name.is_server for name in names(run)], dtype=bool)


def class_of_ranks(predicted: Run, measured: Run) -> NDArray[np.int64]:
    """For each rank of the measured run the rank class of the predicted one that stands for it; −1 for none."""
    classes, ranks = names(predicted), names(measured)
    room, taken = multiplicity(predicted), multiplicity(measured)
    result = np.full(len(ranks), -1, dtype=np.int64)
    # those that are told apart first, then who fills the classes of many
    for number in sorted(range(len(classes)), key=lambda n: (classes[n].ranks, n)):
        for rank in _in_order(ranks):
            if result[rank] < 0 and taken[rank] <= room[number] and classes[number].holds(ranks[rank]):
                result[rank] = number
                room[number] -= taken[rank]
    for rank in np.flatnonzero(result < 0).tolist():
        # a class that was split on one side alone
        alike = (number for number, name in enumerate(classes) if name.holds(ranks[rank]))
        result[rank] = next(alike, -1)
    return result


def _in_order(ranks: Sequence[Name]) -> list[int]:
    """Ranks by worker, as classes count them."""
    return sorted(range(len(ranks)), key=lambda rank: (ranks[rank].at.get("worker", 0), rank))
