"""Closed forms are what passes that are followed one by one take, and bounds are below."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.estimate.pipelines import Stages, unlike_s, windows
from simulator.estimate.recurrence import Passing, Piece, timed
from simulator.strategy.schedule import ScheduleName


def stages(ranks: int, chunks: int, microbatches: int, unlike: float, send_s: float, overlap_sends: bool, seed: int) -> Stages:
    """Passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(seed), ranks * chunks
    forward_s, backward_s = (seconds * (1 + unlike * rng.random((count, 1))) for seconds in (1.0, 2.0))
    return Stages(forward_s, backward_s, np.full((count - 1, 1), send_s), np.array([microbatches]), ranks, overlap_sends)


def followed_s(schedule: ScheduleName, given: Stages) -> np.ndarray:
    work_s = np.array([given.forward_s, given.backward_s])
    chunks = len(given.forward_s) // given.ranks
    passing = Passing(schedule, given.ranks, chunks, given.overlap_sends, work_s, given.sends_s)
    return timed([Piece.of(passing, int(given.microbatches[0]))])[0].window_s


CASES = {"ranks": st.integers(2, 5), "send_s": st.sampled_from([0.0, 0.2]), "overlap_sends": st.booleans()}


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)]), microbatches=st.integers(1, 4),
    unlike=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99), **CASES,
)  # fmt: skip
def test_no_rank_is_done_before_the_bound(
    case: tuple[ScheduleName, int], microbatches: int, unlike: float, seed: int, ranks: int, send_s: float, overlap_sends: bool
) -> None:
    found = stages(ranks, case[1], microbatches * ranks, unlike, send_s, overlap_sends, seed)
    _, least_s = windows(case[0], found)
    assert (least_s <= followed_s(case[0], found) + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)]),
    microbatches=st.integers(1, 6), **CASES,
)  # fmt: skip
def test_what_is_expected_of_alike_stages_is_near(
    case: tuple[ScheduleName, int], microbatches: int, ranks: int, send_s: float, overlap_sends: bool
) -> None:
    found = stages(ranks, case[1], microbatches * ranks, 0.0, send_s, overlap_sends, 0)
    expected_s, _ = windows(case[0], found)
    assert expected_s[0] == pytest.approx(followed_s(case[0], found)[0], rel=0.08)


def test_one_rank_has_nothing_to_wait_for() -> None:
    found = Stages(np.array([[1.0]]), np.array([[2.0]]), np.zeros((0, 1)), np.array([5]), 1, False)
    expected_s, least_s = windows("1f1b", found)
    assert expected_s == pytest.approx(15.0)
    assert least_s == pytest.approx(15.0)


def test_alike_stages_lose_nothing_in_step_and_unlike_ones_do() -> None:
    assert unlike_s(stages(4, 3, 8, 0.0, 0.0, False, 0)) == pytest.approx(0.0)
    assert unlike_s(stages(4, 3, 8, 2.0, 0.0, False, 0)).min() > 0
