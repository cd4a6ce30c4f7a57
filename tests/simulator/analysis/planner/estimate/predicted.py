"""The check of estimates against predictions that several tests share."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate import Configurations, memory_bytes, step_times
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed


def check_against_predictions(found: Configurations, rows: NDArray[np.int64]) -> None:
    """Asserts that step times of some configurations are near predictions, bounds are below them, and memory is the same."""
    times, estimated_bytes = step_times(found.take(rows)), memory_bytes(found.take(rows))
    predicted_s = np.array([timed(found.scenario(row)).step_time_s for row in rows])
    errors = times.expected_s / predicted_s - 1
    assert (times.least_s <= predicted_s * (1 + 1e-9)).all()
    assert np.median(np.abs(errors)) <= 0.03
    assert np.abs(errors).max() <= 0.10
    assert estimated_bytes == pytest.approx([memory(found.scenario(row)).worst.total_bytes for row in rows])
