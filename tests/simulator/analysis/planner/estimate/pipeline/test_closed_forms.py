"""Closed forms are near the times of simulated passes, and bounds are not above them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import StageTimes, imbalance_s, windows, with_gathers
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import EqualMicrobatches, PassSequence, simulate_equal
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName


def stages(
    ranks: int, chunks: int, microbatches: int, imbalance: float, send_s: float, overlap_sends: bool, seed: int
) -> StageTimes:
    """Passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(seed), ranks * chunks
    forward_s, backward_s = (seconds * (1 + imbalance * rng.random((count, 1))) for seconds in (1.0, 2.0))
    return StageTimes.separate(
        forward_s, backward_s, np.full((count - 1, 1), send_s), np.array([microbatches]), ranks, overlap_sends
    )


def simulated_s(schedule: ScheduleName, given: StageTimes) -> np.ndarray:
    work_s = np.array([given.forward_s, given.backward_s])
    passing = PassSequence(schedule, given.equivalence, given.overlap_sends, work_s, given.send_s)
    return simulate_equal([EqualMicrobatches.of(passing, int(given.microbatches[0]))])[0].window_s


CASES = {"ranks": st.integers(2, 5), "send_s": st.sampled_from([0.0, 0.2]), "overlap_sends": st.booleans()}


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)]), microbatches=st.integers(1, 4),
    imbalance=st.sampled_from([0.0, 0.3, 2.0]), seed=st.integers(0, 99), **CASES,
)  # fmt: skip
def test_no_rank_ends_before_the_lower_bound(
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
    assert (least_s <= simulated_s(case[0], found) + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)]),
    microbatches=st.integers(1, 6), **CASES,
)  # fmt: skip
def test_expected_times_of_equal_stages_are_near_simulated_ones(
    case: tuple[ScheduleName, int], microbatches: int, ranks: int, send_s: float, overlap_sends: bool
) -> None:
    found = stages(ranks, case[1], microbatches * ranks, 0.0, send_s, overlap_sends, 0)
    expected_s, _ = windows(case[0], found, [0])
    assert expected_s[0] == pytest.approx(simulated_s(case[0], found)[0], rel=0.08)


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)]),
    ranks=st.integers(2, 6), microbatches=st.integers(1, 4), overlap_sends=st.booleans(), is_gathered=st.booleans(),
    data=st.data(),
)  # fmt: skip
def test_classes_of_stages_give_the_times_of_separate_stages(
    case: tuple[ScheduleName, int], ranks: int, microbatches: int, overlap_sends: bool, is_gathered: bool, data: st.DataObject
) -> None:
    """Three configurations, with few kinds of stages and of messages between them."""
    schedule, chunks = case
    count = ranks * chunks
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    ways = data.draw(st.lists(st.integers(0, 1), min_size=count - 1, max_size=count - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    passes_s, sends_s, moved_s = (rng.uniform(0.1, 2.0, shape) for shape in ((2, 3, 3), (2, 3), (5, 3, 3)))
    every = StageTimes.separate(*passes_s[:, kinds], sends_s[ways], np.full(3, microbatches * ranks), ranks, overlap_sends)
    ends = list(zip([-1, *ways], [*ways, -1], kinds, strict=True))
    distinct_ends = list(dict.fromkeys(ends))
    first = [ends.index(one) for one in distinct_ends]
    own_s = (seconds[first] for seconds in (every.forward_s, every.backward_s, every.receive_s, every.send_s))
    few = StageTimes(
        *own_s, every.microbatches, EquivalentStages([distinct_ends.index(one) for one in ends], ranks), overlap_sends
    )
    pairs = [(few, np.array([kind for *_, kind in distinct_ends])), (every, np.array(kinds))]
    if is_gathered:
        collectives = LayerGatherTimes.of(moved_s, np.array([[1], [2], [4]]))
        several = [LayerGatherTimes.of((each[of] for each in collectives[:5]), collectives.layers[of]) for _, of in pairs]
        pairs = [(with_gathers(one, given), of) for (one, of), given in zip(pairs, several, strict=True)]
    for mine, others in zip(*(windows(schedule, one, range(ranks)) for one, _ in pairs), strict=True):
        assert mine == pytest.approx(others, rel=1e-12)
    assert imbalance_s(few) == pytest.approx(imbalance_s(every), abs=1e-12)
    assert few.expanded.receive_s.tolist() == every.receive_s.tolist()
    assert few.expanded.backward_s.tolist() == every.backward_s.tolist()


def test_a_single_rank_has_no_bubble() -> None:
    found = StageTimes.separate(np.array([[1.0]]), np.array([[2.0]]), np.zeros((0, 1)), np.array([5]), 1, False)
    expected_s, least_s = windows("1f1b", found, [0])
    assert expected_s == pytest.approx(15.0)
    assert least_s == pytest.approx(15.0)


def test_only_unequal_stages_lose_time_to_imbalance() -> None:
    assert imbalance_s(stages(4, 3, 8, 0.0, 0.0, False, 0)) == pytest.approx(0.0)
    assert imbalance_s(stages(4, 3, 8, 2.0, 0.0, False, 0)).min() > 0
