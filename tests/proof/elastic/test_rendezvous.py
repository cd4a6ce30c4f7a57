"""Rendezvous times by torchrun's rules: immediate if all hosts join, after the last call otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.elastic.rendezvous import POLL_S, Settings, met_s

SETTINGS = Settings(hosts=(2, 3))
leaves = st.lists(st.floats(0.0, 5.0), min_size=3, max_size=3)


def test_the_last_host_to_leave_joins_first_and_others_at_their_next_poll() -> None:
    # host 0 waits for the others to leave and looks at 1.0; host 1 joins at 0.3, and looks again at 1.3
    assert met_s([0.0, 0.3], Settings(hosts=(2, 2))) == pytest.approx(1.3)
    assert met_s([0.0, 1.3], Settings(hosts=(2, 2))) == pytest.approx(2.3)


@given(leaves)
def test_the_rendezvous_completes_soon_after_the_last_host_left(leave_s: list[float]) -> None:
    met = met_s(leave_s, SETTINGS)
    assert max(leave_s) <= met <= max(leave_s) + 2 * POLL_S + 1e-9


@given(leaves, st.floats(0.0, 100.0))
def test_rendezvous_time_does_not_depend_on_absolute_time(leave_s: list[float], later_s: float) -> None:
    later = met_s([one_s + later_s for one_s in leave_s], SETTINGS)
    # rounding decides whether two look at the same moment
    assert later - later_s == pytest.approx(met_s(leave_s, SETTINGS), abs=POLL_S + 1e-6)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), st.floats(1.0, 10.0))
def test_a_missing_host_costs_its_timeout_and_the_last_call(leave_s: list[float], gone_s: float) -> None:
    met = met_s(leave_s, SETTINGS, gone_s)
    assert gone_s + SETTINGS.last_call_s <= met <= gone_s + SETTINGS.last_call_s + 4 * POLL_S


@given(st.lists(st.floats(0.0, 0.9), min_size=2, max_size=2), st.integers(1, 10))
def test_a_longer_last_call_lengthens_the_rendezvous(leave_s: list[float], more_s: int) -> None:
    short, long = (Settings(hosts=(2, 3), last_call_s=seconds) for seconds in (2, 2 + more_s))
    assert met_s(leave_s, long, 2.5) == pytest.approx(met_s(leave_s, short, 2.5) + more_s, abs=1e-6)


def test_torchrun_gets_the_settings() -> None:
    arguments = Settings(hosts=(2, 3), last_call_s=7).arguments("10.77.0.1:29400", "10.77.0.2", hosts_store=False)
    assert "--nnodes=2:3" in arguments
    assert "--local-addr=10.77.0.2" in arguments
    assert any("last_call_timeout=7" in one and "is_host=0" in one for one in arguments)
    assert SETTINGS.missing_s == 3
