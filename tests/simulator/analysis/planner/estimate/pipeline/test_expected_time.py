"""What closed forms expect is what is found pass by pass, and all of them are told at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import StageTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import Expected, follow, passing_of
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import EqualMicrobatches, timed
from scaleproof.simulator.strategy.pipeline.schedule import stage_of


def held(ranks: int, chunks: int) -> np.ndarray:
    return np.array([[stage_of("interleaved_1f1b", ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)])


def drawn(
    ranks: int, chunks: int, microbatches: int, unlike: float, send_s: float = 0.0, overlap_sends: bool = True
) -> StageTimes:
    """Forward and backward passes of about 1 and 2 s."""
    rng, count = np.random.default_rng(ranks * chunks), ranks * chunks
    forward_s, backward_s = (seconds * (1 + unlike * rng.random((count, 1))) for seconds in (1.0, 2.0))
    return StageTimes.each(
        forward_s, backward_s, np.full((count - 1, 1), send_s), np.array([microbatches]), ranks, overlap_sends
    )


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 6),
    chunks=st.integers(2, 4),
    share=st.integers(1, 6),
    unlike=st.sampled_from([0.0, 0.5, 3.0]),
    send_s=st.sampled_from([0.0, 0.5, 3.0]),
    overlap_sends=st.booleans(),
)
def test_the_last_gradients_of_few_microbatches_come_when_they_have_come_round(
    ranks: int, chunks: int, share: int, unlike: float, send_s: float, overlap_sends: bool
) -> None:
    """Of fewer than there are ranks, which go round together."""
    microbatches = min(share, ranks - 1)
    stages = drawn(ranks, chunks, microbatches, unlike, send_s, overlap_sends)
    found = Expected.of("interleaved_1f1b", held(ranks, chunks), range(ranks), stages)
    followed = timed([EqualMicrobatches.of(passing_of("interleaved_1f1b", stages), microbatches)])[0]
    assert found.left_s is not None
    left_s = followed.left_s[held(ranks, chunks)]
    assert (found.left_s <= 1.35 * left_s + 1e-9).all()
    assert (found.left_s >= 0.65 * left_s - 1e-9).all()


def test_unlike_stages_are_followed_and_alike_ones_need_not_be() -> None:
    alike, unlike = (Expected.of("interleaved_1f1b", held(4, 2), [0, 3], drawn(4, 2, 12, how)) for how in (0.0, 3.0))
    assert not alike.followed.any()
    assert alike.asked is None
    assert unlike.followed.all()
    expected_s = unlike.window_s.copy()
    follow([alike, unlike])
    stages = drawn(4, 2, 12, 3.0)
    found = timed([EqualMicrobatches.of(passing_of("interleaved_1f1b", stages), 12)])[0]
    assert unlike.window_s == pytest.approx(found.window_s[[0, 3]])
    assert (unlike.window_s != expected_s).any()
    assert unlike.left_s == pytest.approx(found.left_s[held(4, 2)[[0, 3]]])
