"""Turns: pairs and groups of ranks are probed one after the other, so that none is measured beside another, and in rounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import NARROW_ENOUGH, half_width
from scaleproof.validator.probe.pairs import RankPair
from scaleproof.validator.probe.peers import Together, collected, together, wait_for_all
from scaleproof.validator.probe.points import NARROW, TIME, Point

# What else a machine does comes and goes: a point's repetitions lie apart.
ROUNDS: Final = 3

# what, where, ranks, size
_What = tuple[str, str, tuple[int, ...], float]


def pairs_in_turn(
    pairs: Sequence[RankPair], probe: Callable[[RankPair, float], Iterable[Point]], budget_s: float
) -> list[dict[str, Any]]:
    """Points of all pairs, on every rank. probe: what both ranks of a pair do in so many seconds."""

    def one_round(budget_s: float) -> Iterator[Point]:
        for pair in pairs:
            if here().rank in (pair.first, pair.second):
                yield from _of_first(pair.first, probe(pair, budget_s / len(pairs)))
            wait_for_all()

    return collected(in_rounds(one_round, budget_s))


def groups_in_turn(
    groups: Sequence[Sequence[int]],
    probe: Callable[[Together, float], Iterable[Point]],
    budget_s: float,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Points of all groups, on every rank. probe: what all ranks of a group do in so many seconds."""
    with together(groups) as peers_of:

        def one_round(budget_s: float) -> Iterator[Point]:
            for peers in peers_of:
                if peers is not None:
                    yield from _of_first(peers.ranks[0], probe(peers, budget_s / len(groups)))
                wait_for_all()

        points = in_rounds(one_round, budget_s, rounds)
    return collected(points)


def in_rounds(probe: Callable[[float], Iterable[Point]], budget_s: float, rounds: int = ROUNDS) -> list[Point]:
    """What a probe finds in several rounds, each with an equal part of the time: points of the same are one, with the times of
    all rounds. Something that holds up a round for long then spoils a part of every point, and no point as a whole."""
    found: dict[_What, list[Point]] = defaultdict(list)
    for _ in range(rounds):
        for point in probe(budget_s / rounds):
            found[point.what, point.where, point.ranks, point.size].append(point)
    return [_merged(points) for points in found.values()]


def _of_first(first: int, points: Iterable[Point]) -> Iterator[Point]:
    """The points, on that rank; all others only have their part in them."""
    return (point for point in points if here().rank == first)


def _merged(points: Sequence[Point]) -> Point:
    seconds = tuple(one for point in points for one in point.seconds)
    numbers = {name: statistics.fmean(point.numbers[name] for point in points) for name in points[0].numbers}
    stopped = NARROW if half_width(seconds) <= NARROW_ENOUGH else TIME
    busy = statistics.fmean(point.cores_busy for point in points)
    return replace(points[0], seconds=seconds, stopped=stopped, cores_busy=busy, numbers=numbers)
