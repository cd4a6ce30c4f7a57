"""Closed forms are near the times of simulated passes, and bounds are not above them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline_times import (
    LayerGatherTimes,
    StageTimes,
    windows,
    with_gathers,
)
from scaleproof.simulator.parallelism.stages import ScheduleName
from tests.simulator.analysis.planner.estimate.one_by_one import windows_s


def stages(
    ranks: int, chunks: int, microbatches: int, imbalance: float, send_s: float, overlap_sends: bool, seed: int
) -> StageTimes:
    """Passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(seed), ranks * chunks
    forward_s, backward_s = (seconds * (1 + imbalance * rng.random((count, 1))) for seconds in (1.0, 2.0))
    sends_s = np.pad(np.full((count - 1, 1), send_s), [(0, 1), (0, 0)])
    return StageTimes(forward_s, backward_s, sends_s, np.array([microbatches]), ranks, overlap_sends)


CASES = {"ranks": st.integers(2, 5), "send_s": st.sampled_from([0.0, 0.2]), "overlap_sends": st.booleans()}


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)]), microbatches=st.integers(1, 4),
    imbalance=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99), **CASES,
)  # fmt: skip
def test_no_rank_ends_before_the_bound(
    case: tuple[ScheduleName, int],
    microbatches: int,
    imbalance: float,
    seed: int,
    ranks: int,
    send_s: float,
    overlap_sends: bool,
) -> None:
    found = stages(ranks, case[1], microbatches * ranks, imbalance, send_s, overlap_sends, seed)
    _, least_s = windows(case[0], found, range(ranks))
    assert (least_s <= windows_s(case[0], found) + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)]),
    microbatches=st.integers(1, 6), **CASES,
)  # fmt: skip
def test_expected_times_of_equal_stages_are_near(
    case: tuple[ScheduleName, int], microbatches: int, ranks: int, send_s: float, overlap_sends: bool
) -> None:
    found = stages(ranks, case[1], microbatches * ranks, 0.0, send_s, overlap_sends, 0)
    expected_s, _ = windows(case[0], found, [0])
    assert expected_s[0] == pytest.approx(windows_s(case[0], found)[0], rel=0.08)


def gathered_s(layers: int, gather_s: float, sum_s: float, work_s: float = 1.0) -> float:
    """1F1B on two ranks whose stages have some number of layers, each of which is gathered, passed and summed."""
    whole = np.full((2, 1), float(layers))
    collectives = LayerGatherTimes(gather_s * whole, gather_s * whole, sum_s * whole, sum_s * whole / layers, whole)
    plain = StageTimes(work_s * whole, 2 * work_s * whole, np.zeros((2, 1)), np.array([4]), 2, True)
    return float(windows("1f1b", with_gathers(plain, collectives), [0])[0].max())


def test_overlapped_gathers_prolong_no_pass() -> None:
    assert gathered_s(4, 0.5, 0.5) == pytest.approx(gathered_s(4, 0.0, 0.0))


def test_collectives_that_take_longer_than_passes_set_the_pace() -> None:
    # of four microbatches four layers are gathered twice and summed once; two layers may be gathered before a message comes
    assert gathered_s(4, 3.0, 3.0, work_s=0.01) == pytest.approx(4 * 4 * 9.0, rel=0.15)
