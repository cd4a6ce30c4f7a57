"""Probes of pairs and groups of ranks one after the other, so that they do not disturb one another, and in several rounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import NARROW_ENOUGH, half_width
from scaleproof.validator.probe.pairs import RankPair
from scaleproof.validator.probe.peers import GroupPeers, collected, peer_groups, wait_for_all
from scaleproof.validator.probe.points import NARROW, TIME, Point

# Other load on a machine varies over time, so a point's repetitions are spread over rounds.
ROUNDS: Final = 3

# what, where, ranks, size
_PointKey = tuple[str, str, tuple[int, ...], float]


def pairs_in_turn(
    pairs: Sequence[RankPair], probe: Callable[[RankPair, float], Iterable[Point]], budget_s: float
) -> list[dict[str, Any]]:
    """Points of all pairs, on every rank. probe: called on both ranks of a pair with its budget in seconds."""

    def one_round(budget_s: float) -> Iterator[Point]:
        for pair in pairs:
            if here().rank in (pair.first, pair.second):
                yield from _points_on(pair.first, probe(pair, budget_s / len(pairs)))
            wait_for_all()

    return collected(in_rounds(one_round, budget_s))


def groups_in_turn(
    groups: Sequence[Sequence[int]],
    probe: Callable[[GroupPeers, float], Iterable[Point]],
    budget_s: float,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Points of all groups, on every rank. probe: called on all ranks of a group with its budget in seconds, which is in
    proportion to their number, as steps of more ranks last longer."""
    ranks = sum(map(len, groups))
    with peer_groups(groups) as peers_of:

        def one_round(budget_s: float) -> Iterator[Point]:
            for peers in peers_of:
                if peers is not None:
                    yield from _points_on(peers.ranks[0], probe(peers, budget_s * len(peers.ranks) / ranks))
                wait_for_all()

        points = in_rounds(one_round, budget_s, rounds)
    return collected(points)


def in_rounds(probe: Callable[[float], Iterable[Point]], budget_s: float, rounds: int = ROUNDS) -> list[Point]:
    """Points of a probe that runs in several rounds of equal time; points that share a key are merged, with the times of all
    rounds. A disturbance that lasts for a round then affects a part of every point, but no point as a whole."""
    by_key: dict[_PointKey, list[Point]] = defaultdict(list)
    for _ in range(rounds):
        for point in probe(budget_s / rounds):
            by_key[point.what, point.where, point.ranks, point.size].append(point)
    return [_merged(points) for points in by_key.values()]


def _points_on(first: int, points: Iterable[Point]) -> Iterator[Point]:
    """The points on rank `first`, none on others; every rank runs the probe, since all take part in it."""
    return (point for point in points if here().rank == first)


def _merged(points: Sequence[Point]) -> Point:
    seconds = tuple(second for point in points for second in point.seconds)
    numbers = {name: statistics.fmean(point.numbers[name] for point in points) for name in points[0].numbers}
    stopped = NARROW if half_width(seconds) <= NARROW_ENOUGH else TIME
    busy = statistics.fmean(point.cores_busy for point in points)
    return replace(points[0], seconds=seconds, stopped=stopped, cores_busy=busy, numbers=numbers)
