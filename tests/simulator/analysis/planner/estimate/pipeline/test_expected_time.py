"""Closed forms agree with simulated passes, and several configurations are simulated together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import StageTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import PassWindows, follow, pass_sequence
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import EqualMicrobatches, simulate_equal
from scaleproof.simulator.strategy.pipeline.schedule import stage_of


def stages_by_rank(ranks: int, chunks: int) -> np.ndarray:
    return np.array([[stage_of("interleaved_1f1b", ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)])


def drawn(
    ranks: int, chunks: int, microbatches: int, imbalance: float, send_s: float = 0.0, overlap_sends: bool = True
) -> StageTimes:
    """Forward and backward passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(ranks * chunks), ranks * chunks
    forward_s, backward_s = (seconds * (1 + imbalance * rng.random((count, 1))) for seconds in (1.0, 2.0))
    return StageTimes.separate(
        forward_s, backward_s, np.full((count - 1, 1), send_s), np.array([microbatches]), ranks, overlap_sends
    )


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 6),
    chunks=st.integers(2, 4),
    share=st.integers(1, 6),
    imbalance=st.sampled_from([0.0, 0.5, 3.0]),
    send_s=st.sampled_from([0.0, 0.5, 3.0]),
    overlap_sends=st.booleans(),
)
def test_last_gradient_times_of_few_microbatches_are_near_simulated_ones(
    ranks: int, chunks: int, share: int, imbalance: float, send_s: float, overlap_sends: bool
) -> None:
    """With fewer microbatches than ranks."""
    microbatches = min(share, ranks - 1)
    stages = drawn(ranks, chunks, microbatches, imbalance, send_s, overlap_sends)
    found = PassWindows.of("interleaved_1f1b", stages_by_rank(ranks, chunks), range(ranks), stages)
    followed = simulate_equal([EqualMicrobatches.of(pass_sequence("interleaved_1f1b", stages), microbatches)])[0]
    assert found.left_s is not None
    left_s = followed.left_s[stages_by_rank(ranks, chunks)]
    assert (found.left_s <= 1.35 * left_s + 1e-9).all()
    assert (found.left_s >= 0.65 * left_s - 1e-9).all()


def test_only_unequal_stages_are_simulated() -> None:
    equal, unequal = (
        PassWindows.of("interleaved_1f1b", stages_by_rank(4, 2), [0, 3], drawn(4, 2, 12, how)) for how in (0.0, 3.0)
    )
    assert not equal.followed.any()
    assert equal.to_follow is None
    assert unequal.followed.all()
    expected_s = unequal.window_s.copy()
    follow([equal, unequal])
    stages = drawn(4, 2, 12, 3.0)
    found = simulate_equal([EqualMicrobatches.of(pass_sequence("interleaved_1f1b", stages), 12)])[0]
    assert unequal.window_s == pytest.approx(found.window_s[[0, 3]])
    assert (unequal.window_s != expected_s).any()
    assert unequal.left_s == pytest.approx(found.left_s[stages_by_rank(4, 2)[[0, 3]]])
