"""Ranks on different machines agree on the time."""

from __future__ import annotations

from tests.validator import faults
from validator.launch import run_on_ranks


def test_one_machine_has_one_clock() -> None:
    assert run_on_ranks(faults.clock_offset, 3, False) == [0.0, 0.0, 0.0]


def test_the_offset_between_clocks_is_found() -> None:
    here, near, far = run_on_ranks(faults.clock_offset, 3, True)

    assert here == near == 0.0
    assert abs(far) < 0.01, "these clocks are one, which messages there and back must find out"
