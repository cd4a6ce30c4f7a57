"""Functions that ranks run in tests of probes, and checks of their points."""

from __future__ import annotations

from typing import Any

from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe import network
from scaleproof.validator.probe.pairs import RankPair
from scaleproof.validator.probe.peers import PairPeers, peer_groups, wait_for_all
from scaleproof.validator.probe.points import Point


def probed(probe: Any, ranks: int, *args: Any) -> list[Point]:
    """The points, which all ranks have, each with the times of some repetitions."""
    first, *others = run_on_ranks(probe, ranks, *args)
    assert all(other == first for other in others)
    points = [Point.of(plain) for plain in first]
    for point in points:
        assert point.seconds
        assert min(point.seconds) >= 0
        assert point.stopped in ("narrow", "time")
        assert point.cores_busy > 0
    return points


def least_s(points: list[Point], what: str, size: float) -> float:
    """The shortest time of a point, which the machine's other work does not touch."""
    (seconds,) = (point.seconds for point in points if (point.what, point.size) == (what, size))
    return min(seconds)


def settle() -> list[Any]:
    """What pairs, groups and everybody come to, of numbers that are ten times their ranks."""
    me = here().rank
    found: list[Any] = []
    with peer_groups([range(here().ranks), [0, 2]]) as (everybody, some):
        for peers in (everybody, some):
            found.append(None if peers is None else (peers.settle([10.0 * me, -me]), peers.total(10.0 * me)))
    pair = PairPeers(2, 1)
    found.append((pair.settle([10.0 * me]), pair.total(10.0 * me)) if me in (1, 2) else None)
    wait_for_all()
    return found


def probe_as_one_fails(pairs: list[RankPair]) -> list[dict[str, Any]]:
    """The last rank has an error where it should wait for the others."""
    if here().rank == here().ranks - 1:
        raise ValueError("the last rank has enough")
    return network.messages(pairs, (4,), 0.05)
