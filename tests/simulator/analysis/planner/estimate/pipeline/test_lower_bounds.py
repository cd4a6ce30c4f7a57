"""Lower bounds are not above the times of simulated passes, and equal them where nothing else delays these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import FOLLOWED, StageTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import pass_sequence
from scaleproof.simulator.analysis.planner.estimate.pipeline.lower_bounds import least_s
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import EqualMicrobatches, simulate_equal
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName, stage_of

ONE_CHUNK = ("zb_h1", "zb_h2")


def chunks_of(schedule: ScheduleName) -> int:
    return 1 if schedule in ONE_CHUNK else 2


def stages_by_rank(schedule: ScheduleName, ranks: int) -> np.ndarray:
    return np.array([[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks_of(schedule))] for rank in range(ranks)])


def drawn(schedule: ScheduleName, ranks: int, microbatches: int, overlap_sends: bool, seed: int = 0) -> StageTimes:
    """Stages of random times; where a pipeline is V-shaped, no message at its turn."""
    rng, count = np.random.default_rng(seed), ranks * chunks_of(schedule)
    forward_s, backward_s = rng.uniform(0.5, 1.5, (2, count, 20))
    sends_s = rng.uniform(0.0, 0.5, (count - 1, 20))
    if schedule in ("zb_v", "dualpipe_v"):
        sends_s[ranks - 1] = 0.0
    weights_s = 0.0 if schedule == "looped_bfs" else 0.4 * backward_s
    return StageTimes.separate(forward_s, backward_s, sends_s, np.full(20, microbatches), ranks, overlap_sends, weights_s)


@pytest.mark.parametrize("overlap_sends", [False, True])
@pytest.mark.parametrize("schedule", FOLLOWED)
def test_no_simulated_time_is_below_the_lower_bound(schedule: ScheduleName, overlap_sends: bool) -> None:
    for ranks, microbatches in ((2, 4), (3, 9), (4, 24)):
        stages = drawn(schedule, ranks, microbatches, overlap_sends)
        found = simulate_equal([EqualMicrobatches.of(pass_sequence(schedule, stages), microbatches)])[0]
        least = least_s(schedule, stages_by_rank(schedule, ranks), stages)
        assert (least[0] <= found.window_s[0] * (1 + 1e-12)).all()
        assert (least.max(axis=0) >= 0.6 * found.window_s.max(axis=0)).all()


@pytest.mark.parametrize("schedule", FOLLOWED)
def test_further_microbatches_add_each_ranks_own_work(schedule: ScheduleName) -> None:
    stages = drawn(schedule, 3, 9, True)
    more = replace(stages, microbatches=stages.microbatches + 30)
    own = stages_by_rank(schedule, 3)
    own_s = (stages.forward_s + stages.backward_s)[own].sum(axis=1)
    assert least_s(schedule, own, more) == pytest.approx(least_s(schedule, own, stages) + 30 * own_s)


def test_zero_bubble_of_equal_stages_has_the_bubble_of_its_paper() -> None:
    """(ranks − 1) · (forward + inputs − weights) of ZB-H1 (arXiv 2401.10241, table 2)."""
    ranks, microbatches = 4, 16
    stages = StageTimes.separate(
        np.ones((4, 1)), np.full((4, 1), 2.0), np.zeros((3, 1)), np.array([microbatches]), ranks, True, np.full((4, 1), 0.9)
    )
    found = least_s("zb_h1", stages_by_rank("zb_h1", ranks), stages)[0, 0]
    assert found == pytest.approx(3 * microbatches + (ranks - 1) * (1 + 1.1 - 0.9))
    assert pass_sequence("zb_h1", stages).simulate(stages.microbatches).window_s[0, 0] == pytest.approx(found)
