"""Messages that share a link take as long as all of them together, and each at least as long as alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.parameter_server.step_times import _processor_sharing_s

MESSAGES = st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 10)), min_size=1, max_size=6)


def shared(messages: list[tuple[float, float]]) -> np.ndarray:
    begin_s, took_s = np.array(messages).T[:, None, :, None]
    return _processor_sharing_s(begin_s, took_s)[0, :, 0]


def test_two_concurrent_transfers_share_the_link_equally() -> None:
    # the first is half done when the second comes
    assert shared([(0.0, 2.0), (1.0, 1.0), (5.0, 1.0)]) == pytest.approx([3.0, 3.0, 6.0])
    assert shared([(0.0, 1.0), (0.0, 3.0)]) == pytest.approx([2.0, 4.0])


def test_absent_transfers_neither_arrive_nor_delay_others() -> None:
    nothing = -np.inf
    assert shared([(0.0, 1.0), (0.0, nothing), (np.inf, 1.0)]).tolist() == [1.0, nothing, nothing]
    assert shared([(0.0, nothing)]).tolist() == [nothing]


@given(MESSAGES)
def test_a_link_is_never_idle_while_transfers_are_pending(messages: list[tuple[float, float]]) -> None:
    ends_s, free_s = shared(messages), 0.0
    for begin_s, took_s in sorted(messages):
        free_s = max(free_s, begin_s) + took_s
    assert ends_s.max() == pytest.approx(free_s)
    assert all(end_s >= sum(message) - 1e-9 for end_s, message in zip(ends_s, messages, strict=True))
