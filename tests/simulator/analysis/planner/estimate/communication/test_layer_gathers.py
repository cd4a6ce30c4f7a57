"""Layer-by-layer gathers and sums, and the step time of a rank alone."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes, one_rank_s


def test_take_returns_the_times_of_some_configurations() -> None:
    seconds = np.arange(30.0).reshape(5, 2, 3)
    found = LayerGatherTimes.of(seconds, np.array([[1], [4]])).take(np.array([2, 0]))
    assert found.layers.ravel().tolist() == [1, 4]
    assert found.gathers_s.tolist() == [[2.0, 0.0], [5.0, 3.0]]
    assert found.last_s.tolist() == [[26.0, 24.0], [29.0, 27.0]]


@pytest.mark.parametrize(("moved_s", "step_s"), [(0.0, 3 * 12.0), (1.0, 1.0 + 3 * 12.0 + 1.0), (100.0, 3 * 12 * 100.0)])
def test_single_rank_time_is_the_maximum_of_passes_and_collectives(moved_s: float, step_s: float) -> None:
    """Three microbatches through four layers: passes of 1 and 2 s, and as long for each of two gathers and a sum."""
    layers = np.full((4, 1), 1.0)
    collectives_s = moved_s * layers, moved_s * layers, moved_s * layers
    found = one_rank_s((layers, 2 * layers), collectives_s, np.array([3]))
    assert found[0] == pytest.approx(step_s, rel=0.06)
    assert found[0] >= max(36.0, 36 * moved_s)
