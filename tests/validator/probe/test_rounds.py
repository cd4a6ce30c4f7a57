"""Results of several rounds are merged into one point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scaleproof.validator.probe.points import NARROW, TIME, Point
from scaleproof.validator.probe.rounds import in_rounds

POINT = Point("message", "send", "rank 0 to rank 1", (0, 1), "across", 4.0, "bytes", (0.001,) * 3, TIME, 1.0, {"alone_s": 1.0})


def test_rounds_share_the_budget_and_their_times_are_merged() -> None:
    budgets = []

    def probe(budget_s: float) -> Iterator[Point]:
        budgets.append(budget_s)
        round_ = len(budgets)
        yield replace(POINT, cores_busy=float(round_), numbers={"alone_s": float(round_)})
        yield replace(POINT, size=16.0, seconds=(0.001 * round_,) * 5, stopped=NARROW)

    steady, other = in_rounds(probe, 6.0)
    assert budgets == [2.0] * 3
    assert steady == replace(POINT, seconds=(0.001,) * 9, stopped=NARROW, cores_busy=2.0, numbers={"alone_s": 2.0})
    assert sorted(set(other.seconds)) == [0.001, 0.002, 0.003]
    assert other.stopped == TIME, "each round is sure of something else"


def test_points_missing_in_one_round_are_taken_from_others() -> None:
    rounds = iter([[POINT], [], [POINT, replace(POINT, where="rank 0 to rank 2")]])
    assert [len(point.seconds) for point in in_rounds(lambda _: next(rounds), 1.0)] == [6, 3]
