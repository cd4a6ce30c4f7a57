"""Ranks that do the same: found by playing a few ranks and comparing hashes of what they launch and send.

Process groups of equal size that together contain all ranks once are an axis, as a dimension of a device mesh is. Ranks are
compared along each axis: at its ends and in its middle, and, where these differ, in between until each boundary is found. What
lies between two equal ranks is taken to equal them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.record import VALUE_READ, EventKind, ProcessGroup, RecordedRanks, Signature

# Plays ranks, and returns the hashes of all that have been played.
Play = Callable[[Iterable[int]], Mapping[int, str]]
_REST: Final = "the other ranks"
# Most operators that are listed.
_LISTED: Final = 3
_COMPARED: Final = (
    EventKind.OPERATOR, EventKind.COPY, EventKind.COLLECTIVE, EventKind.SEND, EventKind.RECEIVE, EventKind.ITEM,
)  # fmt: skip


class Axis(NamedTuple):
    """An axis: its name, and the coordinate of each rank."""

    name: str
    coordinates: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return int(self.coordinates.max()) + 1


@dataclass(frozen=True)
class EquivalentRanks:
    """Ranks that do the same. played: one that was played. why: axes along which they differ from others, if named."""

    ranks: tuple[int, ...]
    played: int
    why: str


def axes_of(groups: Sequence[ProcessGroup], world: int) -> list[Axis]:
    """Axes that process groups make, the shortest first, and one for what they leave open, so that coordinates differ and each
    combination of them is a rank."""
    partitions = sorted(_partitions(groups, world), key=lambda axis: axis.size)
    axes: list[Axis] = []
    cells = np.zeros(world, np.int64)
    for axis in partitions:
        finer = _cells(cells, axis.coordinates)
        if finer.max() + 1 == (cells.max() + 1) * axis.size:
            axes.append(axis)
            cells = finer
    if cells.max() + 1 < world:
        places: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
        axes.append(Axis(_REST, np.array([next(places[cell]) for cell in cells.tolist()])))
    return axes


def _cells(cells: NDArray[np.int64], coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of distinct pairs of a cell and a coordinate."""
    pairs = cells * (int(coordinates.max()) + 1) + coordinates
    numbers: NDArray[np.int64] = np.unique(pairs, return_inverse=True)[1]
    return numbers


def _partitions(groups: Sequence[ProcessGroup], world: int) -> Iterable[Axis]:
    """Axes of successive groups of equal size and name that contain each rank once. The group of all ranks is none."""
    found: list[Sequence[int]] = []
    seen: set[int] = set()
    by_name: defaultdict[str, list[ProcessGroup]] = defaultdict(list)
    for group in groups:
        by_name[group.description].append(group)
    for group in itertools.chain.from_iterable(by_name.values()):
        size = len(group.ranks)
        if not 1 < size < world:
            continue
        if found and (len(found[0]) != size or not seen.isdisjoint(group.ranks)):
            found, seen = [], set()
        found.append(group.ranks)
        seen.update(group.ranks)
        if len(seen) == world:
            coordinates = np.zeros(world, np.int64)
            for ranks in found:
                coordinates[list(ranks)] = np.arange(size)
            yield Axis(group.description or f"groups of {size}", coordinates)
            found, seen = [], set()


def find_classes(world: int, axes: Sequence[Axis], play: Play) -> list[EquivalentRanks]:
    """The classes of all ranks of a job."""
    hashes = play([0, world - 1])
    if hashes[0] == hashes[world - 1]:
        return [EquivalentRanks(tuple(range(world)), 0, "")]
    search = _Search(world, axes, play)
    return search.single() or search.products()


class _Search:
    """Plays ranks until all classes are known."""

    def __init__(self, world: int, axes: Sequence[Axis], play: Play) -> None:
        self._world, self._axes, self._play = world, axes, play
        self._rank_at = {
            cell: rank for rank, cell in enumerate(zip(*(axis.coordinates.tolist() for axis in axes), strict=True))
        }

    def single(self) -> list[EquivalentRanks]:
        """The classes where only the first or the last rank differs, as the one that prints does; empty otherwise."""
        if self._world <= 2:
            return [EquivalentRanks((rank,), rank, "") for rank in range(self._world)]
        first, last = 0, self._world - 1
        # ranks of an axis may differ alternately, replicas do not
        middle = [] if [axis.name for axis in self._axes] == [_REST] else [self._world // 2]
        hashes = self._play([1, *middle])
        others = {hashes[rank] for rank in (1, *middle)}
        if others == {hashes[last]}:
            return self._without(first, last)
        if others == {hashes[first]} and self._play([last - 1])[last - 1] == hashes[first]:
            return self._without(last, first)
        return []

    def _without(self, one: int, representative: int) -> list[EquivalentRanks]:
        others = tuple(rank for rank in range(self._world) if rank != one)
        classes = [
            EquivalentRanks((one,), one, ""),
            EquivalentRanks(others, representative, ""),
        ]
        return sorted(classes, key=lambda each: each.ranks)

    def products(self) -> list[EquivalentRanks]:
        """The classes by blocks of coordinates on each axis."""
        middle = [axis.size // 2 for axis in self._axes]
        starts = [self._starts(place, middle) for place in range(len(self._axes))]
        # a representative of each product of blocks, in the middle of axes that make no difference
        corners = itertools.product(*(own if len(own) > 1 else [at] for own, at in zip(starts, middle, strict=True)))
        representatives = [self._rank(cell) for cell in corners]
        hashes = self._play(representatives)
        blocks = [np.searchsorted(own, axis.coordinates, side="right") for own, axis in zip(starts, self._axes, strict=True)]
        keys = list(zip(*(block.tolist() for block in blocks), strict=True))
        by_key = {keys[rank]: hashes[rank] for rank in representatives}
        # what was played by itself may differ from its block, as a rank that prints does
        hash_of = {rank: hashes.get(rank, by_key[keys[rank]]) for rank in range(self._world)}
        members: defaultdict[str, list[int]] = defaultdict(list)
        for rank, own_hash in hash_of.items():
            members[own_hash].append(rank)
        along = [axis.name for axis, own in zip(self._axes, starts, strict=True) if len(own) > 1 and axis.name != _REST]
        why = f"along {', '.join(along)}" if along else ""
        played = {own_hash: min(rank for rank in hashes if hashes[rank] == own_hash) for own_hash in members}
        return [EquivalentRanks(tuple(ranks), played[own_hash], why) for own_hash, ranks in members.items()]

    def _starts(self, place: int, middle: Sequence[int]) -> list[int]:
        """First coordinates of blocks of equal ranks along an axis, through the middle of all others."""
        size = self._axes[place].size

        def rank(coordinate: int) -> int:
            return self._rank([coordinate if at == place else other for at, other in enumerate(middle)])

        points = sorted({0, size // 2, size - 1})
        self._play([rank(point) for point in points])
        starts = [0]
        for low, high in itertools.pairwise(points):
            starts += self._boundaries(rank, low, high)
        return starts

    def _boundaries(self, rank: Callable[[int], int], low: int, high: int) -> list[int]:
        """First coordinates after boundaries between two coordinates."""
        hashes = self._play([])
        if hashes[rank(low)] == hashes[rank(high)]:
            return []
        if high == low + 1:
            return [high]
        # most differences are of the first or the last one
        hashes = self._play([rank(low + 1), rank(high - 1)])
        if hashes[rank(low + 1)] == hashes[rank(high)]:
            return [low + 1]
        if hashes[rank(high - 1)] == hashes[rank(low)]:
            return [high]
        middle = (low + high) // 2
        self._play([rank(middle)])
        return [*self._boundaries(rank, low, middle), *self._boundaries(rank, middle, high)]

    def _rank(self, cell: Sequence[int]) -> int:
        return self._rank_at[tuple(cell)]


def ranges(ranks: Sequence[int]) -> tuple[range, ...]:
    """Ascending ranks as few evenly spaced ranges."""
    found: list[range] = []
    begin = 0
    while begin < len(ranks):
        step = ranks[begin + 1] - ranks[begin] if begin + 1 < len(ranks) else 1
        end = begin + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        found.append(range(ranks[begin], ranks[end - 1] + 1, step))
        begin = end
    return tuple(found)


def with_differences(classes: Sequence[RecordedRanks]) -> tuple[RecordedRanks, ...]:
    """Classes, each with what distinguishes it from the largest."""
    largest = max(classes, key=len)
    return tuple(
        one if one is largest else replace(one, why=", ".join(filter(None, (one.why, difference(one, largest)))))
        for one in classes
    )


def difference(one: RecordedRanks, other: RecordedRanks) -> str:
    """How the step of a class differs from that of another one: numbers of operators, or the first one with other tensors."""
    own, others = _calls(one), _calls(other)
    counts, other_counts = (Counter(name for name, _, _ in calls) for calls in (own, others))
    changed = [name for name in counts | other_counts if counts[name] != other_counts[name]]
    if changed:
        listed = ", ".join(f"{counts[name]} instead of {other_counts[name]} {name}" for name in changed[:_LISTED])
        more = f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else ""
        return f"{listed}{more}, compared with {other.name}"
    first = next(((a, b) for a, b in zip(own, others, strict=True) if a[:2] != b[:2]), None)
    if first is None:
        return f"waits and streams differ from those of {other.name}"
    (name, tensors, line), (instead, known, _) = first
    at = f" at {line}" if line else ""
    if name != instead:
        return f"{name} instead of {instead}{at}, compared with {other.name}"
    return f"{name} of {tensors} instead of {known}{at}, compared with {other.name}"


def _calls(one: RecordedRanks) -> list[tuple[str, str, str]]:
    """Name, shapes and line of each operator and communication of a step."""
    rows = one.rows(*_COMPARED).tolist()
    return [(_name(one.text("name", row)), _tensors(one.signature(row)), one.text("line", row)) for row in rows]


def _name(operator: str) -> str:
    """A name without its namespace."""
    return "reads of values" if operator == VALUE_READ else operator.rpartition("::")[2]


def _tensors(signature: Signature) -> str:
    return ", ".join("×".join(map(str, shape)) or "one" for shape, _, _ in signature.inputs)
