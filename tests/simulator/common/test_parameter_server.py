"""Rounds end without late workers; clocks of workers allow replies to those that are not too far ahead of the slowest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.parameter_server import Clocks, Rounds


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.sampled_from([0, 1, 3, math.inf]))
def test_replies_are_allowed_within_the_bound_of_the_slowest(events: list[tuple[int, bool]], bound: float) -> None:
    """events: worker, and whether it leaves instead of pushing."""
    clocks, pushes = Clocks(range(4), bound), dict.fromkeys(range(4), 0)
    for worker, leaves in events:
        if leaves:
            clocks.leave(worker)
            pushes.pop(worker, None)
        elif worker in pushes:
            pushes[worker] += 1
            assert clocks.advance(worker) == pushes[worker]
        slowest = min(pushes.values(), default=math.inf)
        assert all(clocks.allows_reply(clock) == (clock <= slowest + bound) for clock in range(62))


@pytest.mark.parametrize("bound", [0, math.inf])
def test_a_worker_that_has_left_gets_its_reply(bound: float) -> None:
    clocks = Clocks(range(2), bound)
    clocks.leave(1)
    assert clocks.allows_reply(clocks.advance(1))


def test_a_worker_is_late_once_the_round_after_its_last_reply_has_ended() -> None:
    rounds = Rounds()
    for worker in (0, 1):
        assert not rounds.is_late(worker)
        rounds.add(worker)
    assert rounds.has(2)
    assert not rounds.has(3)
    assert rounds.end() == [0, 1]
    # the third of three workers, whose push was not waited for
    assert rounds.is_late(2)
    rounds.join(2)
    assert not any(map(rounds.is_late, range(3)))
    rounds.add(2, pushes=3)
    assert rounds.has(3)
