"""Simulated passes end as their schedules say; few microbatches represent many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import (
    EqualMicrobatches,
    PassSequence,
    PipelineTimes,
    simulate_all,
    simulate_equal,
)
from scaleproof.simulator.strategy.pipeline.schedule import Pass, ScheduleName, order
from scaleproof.simulator.strategy.pipeline.schedules.passes import StageOrder, starts

SCHEDULES: list[tuple[ScheduleName, int]] = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 3), ("looped_bfs", 2), ("zb_h1", 1), ("zb_h2", 1), ("zb_1p", 1),
    ("zb_2p", 1), ("interleaved_zero_bubble", 2), ("zb_v", 2), ("dualpipe_v", 2),
]  # fmt: skip


def passing(schedule: ScheduleName, ranks: int, chunks: int, overlap_sends: bool = True, send_s: float = 0.0) -> PassSequence:
    """Passes over equal stages: forward passes take 1 s, gradients of inputs and of weights 1.5 and 0.5 s."""
    stages = ranks * chunks
    work_s = np.repeat([1.0, 2.0, 1.5, 0.5], stages).reshape(4, stages, 1)
    return PassSequence(
        schedule, EquivalentStages(range(stages), ranks), overlap_sends, work_s, sends(np.full((stages - 1, 1), send_s))
    )


def sends(between_s: np.ndarray) -> np.ndarray:
    """Messages behind each stage, none behind the last."""
    return np.pad(between_s, [(0, 1), (0, 0)])


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_pass_ends_follow_from_order_and_dependencies(schedule: ScheduleName, chunks: int) -> None:
    ranks, microbatches = 3, 6
    found = passing(schedule, ranks, chunks).simulate(np.array([microbatches]))
    passes = order(schedule, ranks, microbatches, chunks)
    passes_by_rank = [
        [(Pass(kind), chunk, one) for kind, chunk, one, slot in zip(*row, strict=True) if slot >= 0]
        for row in zip(*(part.tolist() for part in passes), strict=True)
    ]
    took = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0, Pass.INPUT: 1.5, Pass.WEIGHT: 0.5}
    began = starts(StageOrder(schedule, ranks, chunks), passes_by_rank, microbatches, took, 0.0)
    ends = [own[-1] + took[own_passes[-1][0]] for own, own_passes in zip(began, passes_by_rank, strict=True)]
    assert found.window_s[:, 0] == pytest.approx([end - own[0] for end, own in zip(ends, began, strict=True)])
    assert (found.left_s >= 0).all()


@settings(max_examples=30, deadline=None)
@given(
    ranks=st.integers(2, 4),
    rounds=st.integers(1, 12),
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1)]),
    send_s=st.sampled_from([0.0, 0.25, 1.0]),
    overlap_sends=st.booleans(),
)
def test_few_microbatches_represent_many_if_stages_are_equal(
    ranks: int, rounds: int, case: tuple[ScheduleName, int], send_s: float, overlap_sends: bool
) -> None:
    one = passing(case[0], ranks, case[1], overlap_sends, send_s)
    short, whole = (
        one.simulate(np.array([rounds * ranks])),
        simulate_equal([EqualMicrobatches.of(one, rounds * ranks)])[0],
    )
    assert short.window_s == pytest.approx(whole.window_s, rel=0.07)


def gathered(layers: int, gather_s: float, sum_s: float, work_s: float = 1.0) -> PipelineTimes:
    """1F1B on two ranks whose stages have some number of layers, each of which is gathered, passed and summed."""
    whole = np.full((2, 1), float(layers))
    each, last = np.full((2, 1), gather_s), np.full((2, 1), sum_s)
    collectives = LayerGatherTimes(layers * each, layers * each, each, layers * last, last, np.full((2, 1), layers))
    passes = work_s * np.array([whole, 2 * whole])
    return PassSequence("1f1b", EquivalentStages(range(2), 2), True, passes, np.zeros((2, 1)), collectives).simulate(
        np.array([4])
    )


def test_overlapped_gathers_do_not_delay_passes() -> None:
    plain, overlapped = gathered(4, 0.0, 0.0), gathered(4, 0.5, 0.5)
    # the first layer of a step is gathered before anything is passed, the last of all sums comes after
    assert overlapped.window_s[0] == pytest.approx(plain.window_s[0] + 0.5)
    assert overlapped.collectives_s == pytest.approx(0.5)


def test_collectives_longer_than_passes_determine_the_step_time() -> None:
    found = gathered(4, 3.0, 3.0, work_s=0.01)
    # of four microbatches four layers are gathered twice and summed once; two layers may be gathered before a message comes
    together_s = found.window_s + found.collectives_s
    assert (together_s >= 4 * 4 * 9.0 - 2 * 3.0).all()
    assert together_s.max() == pytest.approx(4 * 4 * 9.0, rel=0.15)


def test_time_of_a_configuration_does_not_depend_on_others() -> None:
    rng = np.random.default_rng(0)
    work_s, sends_s, equivalence = rng.random((2, 6, 7)), sends(rng.random((5, 7))), EquivalentStages(range(6), 3)
    whole = PassSequence("interleaved_1f1b", equivalence, False, work_s, sends_s).simulate(np.full(work_s.shape[-1], 9))
    for each in range(7):
        alone = PassSequence("interleaved_1f1b", equivalence, False, work_s[:, :, [each]], sends_s[:, [each]]).simulate(
            np.array([9])
        )
        assert alone.window_s[:, 0] == pytest.approx(whole.window_s[:, each])
        assert alone.left_s[:, 0] == pytest.approx(whole.left_s[:, each])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_padding_of_blocks_does_not_change_times(count: int) -> None:
    """Any number of configurations, in the given order, each timed as if alone."""
    rng = np.random.default_rng(count)
    given = LayerGatherTimes(*rng.random((5, 4, count)), np.full((4, 1), 3))
    one = PassSequence(
        "1f1b", EquivalentStages(range(4), 4), False, rng.random((2, 4, count)), sends(rng.random((3, count))), given
    )
    whole = simulate_equal([EqualMicrobatches.of(one, 6)])[0]
    assert whole.window_s.shape == (4, count)
    for number in (0, count // 2, count - 1):
        alone = simulate_equal([EqualMicrobatches.of(one.take(np.array([number])), 6)])[0]
        assert [part[:, number].tolist() for part in whole] == [part[:, 0].tolist() for part in alone]


def test_time_of_a_sequence_does_not_depend_on_others() -> None:
    rng = np.random.default_rng(1)
    several = []
    for number, ((schedule, chunks), overlap_sends) in enumerate(itertools.product(SCHEDULES, (False, True))):
        ranks, count = 2 + number % 3, 1 + number % 4
        stages = ranks * chunks
        work_s = rng.random((4, stages, count))
        given = None
        if number % 3 == 0:
            whole, part = rng.random((3, stages, count)), 0.3 * rng.random((2, stages, count))
            given = LayerGatherTimes(whole[0], whole[1], part[0], whole[2], part[1], np.full((stages, 1), 1 + number % 4))
        sends_s = sends(rng.random((stages - 1, count)))
        microbatches = ranks * np.arange(2, 2 + count)
        one = PassSequence(schedule, EquivalentStages(range(stages), ranks), overlap_sends, work_s, sends_s, given)
        several.append((one, microbatches))
    together = simulate_all(several)
    for (passing, microbatches), found in zip(several, together, strict=True):
        for one, other in zip(passing.simulate(microbatches), found, strict=True):
            assert one == pytest.approx(other)
            assert np.isfinite(one).all()
