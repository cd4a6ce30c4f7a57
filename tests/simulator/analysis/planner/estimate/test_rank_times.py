"""The step time of a rank that is alone in its pipeline and gathers parameters layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate.rank_times import one_rank_s


@pytest.mark.parametrize(("moved_s", "step_s"), [(0.0, 3 * 12.0), (1.0, 1.0 + 3 * 12.0 + 1.0), (100.0, 3 * 12 * 100.0)])
def test_a_rank_alone_takes_as_long_as_the_longer_of_passes_and_collectives(moved_s: float, step_s: float) -> None:
    """Three microbatches through four layers: passes of 1 and 2 s, and as long for each of two gathers and a sum."""
    layers = np.full((4, 1), 1.0)
    collectives_s = moved_s * layers, moved_s * layers, moved_s * layers
    found = one_rank_s((layers, 2 * layers), collectives_s, np.array([3]))
    assert found[0] == pytest.approx(step_s, rel=0.06)
    assert found[0] >= max(36.0, 36 * moved_s)
