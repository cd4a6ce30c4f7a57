"""Simulated passes end as their schedules say, few microbatches represent many, and bounds are not above them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline_times import (
    FOLLOWED,
    StageTimes,
    lower_bounds,
    pass_windows,
    simulate,
    simulate_all_passes,
    stages_of,
)
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules import EQUAL, SCHEDULES, Pass, starts
from tests.simulator.analysis.planner.estimate.one_by_one import windows_s

SIMULATED: tuple[ScheduleName, ...] = ("interleaved_1f1b", *FOLLOWED)


def chunks_of(schedule: ScheduleName) -> int:
    return 1 if schedule in ("zb_h1", "zb_h2") else 2


def equal(schedule: ScheduleName, ranks: int, microbatches: int, send_s: float = 0.0, overlap_sends: bool = True) -> StageTimes:
    """Equal stages: forward passes take 1 s, gradients of inputs and of weights 1.5 and 0.5 s."""
    whole = np.ones((ranks * chunks_of(schedule), 1))
    sends_s = np.append(send_s * whole[:-1], [[0.0]], axis=0)
    return StageTimes(whole, 2 * whole, sends_s, np.array([microbatches]), ranks, overlap_sends, 0.5 * whole)


def drawn(schedule: ScheduleName, ranks: int, microbatches: int, overlap_sends: bool, count: int = 20) -> StageTimes:
    """Stages of random times; where a pipeline is V-shaped, no message at its turn."""
    rng, stages = np.random.default_rng(0), ranks * chunks_of(schedule)
    forward_s, backward_s = rng.uniform(0.5, 1.5, (2, stages, count))
    sends_s = rng.uniform(0.0, 0.5, (stages, count))
    sends_s[-1] = 0.0
    if schedule in ("zb_v", "dualpipe_v"):
        sends_s[ranks - 1] = 0.0
    weights_s = 0.0 if schedule in ("interleaved_1f1b", "looped_bfs") else 0.4 * backward_s
    return StageTimes(forward_s, backward_s, sends_s, np.full(count, microbatches), ranks, overlap_sends, weights_s)


@pytest.mark.parametrize("schedule", SIMULATED)
def test_passes_end_as_the_order_and_dependencies_say(schedule: ScheduleName) -> None:
    ranks, microbatches, chunks = 3, 6, chunks_of(schedule)
    found = simulate(schedule, equal(schedule, ranks, microbatches))
    passes_by_rank = [SCHEDULES[schedule](ranks, rank, microbatches, chunks, EQUAL) for rank in range(ranks)]
    took = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0, Pass.INPUT: 1.5, Pass.WEIGHT: 0.5}
    began = starts(schedule, chunks, passes_by_rank, microbatches, took, 0.0)
    ends = [own[-1] + took[Pass(own_passes[-1, 0])] for own, own_passes in zip(began, passes_by_rank, strict=True)]
    assert found.window_s[:, 0] == pytest.approx([end - own[0] for end, own in zip(ends, began, strict=True)])
    assert (found.left_s >= 0).all()


@pytest.mark.parametrize("overlap_sends", [False, True])
@pytest.mark.parametrize("schedule", SIMULATED)
def test_passes_simulated_together_end_as_one_by_one(schedule: ScheduleName, overlap_sends: bool) -> None:
    for ranks, microbatches in ((2, 4), (3, 9), (4, 24)):
        stages = drawn(schedule, ranks, microbatches, overlap_sends)
        found = simulate_all_passes(schedule, stages, microbatches)
        assert found.window_s == pytest.approx(windows_s(schedule, stages))


@settings(max_examples=30, deadline=None)
@given(
    ranks=st.integers(2, 4),
    rounds=st.integers(1, 12),
    schedule=st.sampled_from(["interleaved_1f1b", "zb_h1", "zb_v"]),
    send_s=st.sampled_from([0.0, 0.25, 1.0]),
    overlap_sends=st.booleans(),
)
def test_few_microbatches_represent_many_with_equal_stages(
    ranks: int, rounds: int, schedule: ScheduleName, send_s: float, overlap_sends: bool
) -> None:
    stages = equal(schedule, ranks, rounds * ranks, send_s, overlap_sends)
    if schedule == "zb_v":
        stages.send_s[ranks - 1] = 0.0
    whole = simulate_all_passes(schedule, stages, rounds * ranks)
    assert simulate(schedule, stages).window_s == pytest.approx(whole.window_s, rel=0.07)


def unequal(
    ranks: int, chunks: int, microbatches: int, imbalance: float, send_s: float = 0.0, overlap_sends: bool = True
) -> StageTimes:
    """Forward and backward passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(ranks * chunks), ranks * chunks
    forward_s, backward_s = (seconds * (1 + imbalance * rng.random((count, 1))) for seconds in (1.0, 2.0))
    sends_s = np.pad(np.full((count - 1, 1), send_s), [(0, 1), (0, 0)])
    return StageTimes(forward_s, backward_s, sends_s, np.array([microbatches]), ranks, overlap_sends)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 6),
    chunks=st.integers(2, 4),
    share=st.integers(1, 6),
    imbalance=st.sampled_from([0.0, 0.5, 3.0]),
    send_s=st.sampled_from([0.0, 0.5, 3.0]),
    overlap_sends=st.booleans(),
)
def test_the_last_gradients_of_few_microbatches_are_near_simulated_ones(
    ranks: int, chunks: int, share: int, imbalance: float, send_s: float, overlap_sends: bool
) -> None:
    """With fewer microbatches than ranks."""
    stages = unequal(ranks, chunks, min(share, ranks - 1), imbalance, send_s, overlap_sends)
    found = pass_windows("interleaved_1f1b", range(ranks), stages)
    left_s = simulate("interleaved_1f1b", stages).left_s[stages_of("interleaved_1f1b", ranks, chunks)]
    assert (found.left_s <= 1.35 * left_s + 1e-9).all()
    assert (found.left_s >= 0.65 * left_s - 1e-9).all()


@pytest.mark.parametrize("overlap_sends", [False, True])
@pytest.mark.parametrize("schedule", FOLLOWED)
def test_no_simulated_passes_are_below_the_bound(schedule: ScheduleName, overlap_sends: bool) -> None:
    for ranks, microbatches in ((2, 4), (3, 9), (4, 24)):
        stages = drawn(schedule, ranks, microbatches, overlap_sends)
        window_s, least_s = windows_s(schedule, stages), lower_bounds(schedule, stages)
        assert (least_s[0] <= window_s[0] * (1 + 1e-12)).all()
        assert (least_s.max(axis=0) >= 0.6 * window_s.max(axis=0)).all()


@pytest.mark.parametrize("schedule", FOLLOWED)
def test_further_microbatches_add_each_ranks_own_work(schedule: ScheduleName) -> None:
    stages = drawn(schedule, 3, 9, True)
    more = replace(stages, microbatches=stages.microbatches + 30)
    own_s = (stages.forward_s + stages.backward_s)[stages_of(schedule, 3, stages.chunks)].sum(axis=1)
    assert lower_bounds(schedule, more) == pytest.approx(lower_bounds(schedule, stages) + 30 * own_s)


def test_zero_bubble_of_equal_stages_has_the_bubble_of_its_paper() -> None:
    """(ranks − 1) · (forward + inputs − weights) of ZB-H1 (arXiv 2401.10241, table 2)."""
    ranks, microbatches = 4, 16
    stages = replace(equal("zb_h1", ranks, microbatches), weights_s=np.full((4, 1), 0.9))
    found = lower_bounds("zb_h1", stages)[0, 0]
    assert found == pytest.approx(3 * microbatches + (ranks - 1) * (1 + 1.1 - 0.9))
    assert simulate("zb_h1", stages).window_s[0, 0] == pytest.approx(found)
