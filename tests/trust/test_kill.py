"""Commands killed at any moment leave complete files, and running them again gives the undisturbed result."""

from __future__ import annotations

import sys

import pytest

from tests.trust.kill import SUBJECTS, kill
from tests.validator.verdicts import at_night

pytestmark = [pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills groups of processes"), pytest.mark.full]


# measuring: tests/validator/test_kill.py
@pytest.mark.parametrize("name", ["calibrate", "report", *at_night("sweep", "reconcile")])
def test_a_command_killed_once_leaves_consistent_results(name: str) -> None:
    assert kill(name, rounds=1, seed=4).rounds == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_command_killed_25_times_leaves_consistent_results(name: str) -> None:
    assert kill(name, rounds=25, seed=1).midst > 0
