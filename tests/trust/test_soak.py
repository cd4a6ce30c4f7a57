"""Memory does not grow with the amount of finished work."""

from __future__ import annotations

import pytest

from tests.trust.soak import points, scenarios

pytestmark = pytest.mark.full

_MIB = 2**20


def test_memory_of_a_study_does_not_grow_with_finished_points() -> None:
    soaked = points(20_000)
    assert soaked.done[-1] >= 20_000
    assert soaked.grown_bytes < 20 * _MIB, soaked


def test_repeated_predictions_do_not_leak_memory() -> None:
    soaked = scenarios(200)
    assert soaked.grown_bytes < 20 * _MIB, soaked


@pytest.mark.nightly
def test_memory_does_not_grow_over_a_million_points_and_ten_thousand_scenarios() -> None:
    many = points(1_000_000)
    assert many.done[-1] >= 1_000_000
    assert many.grown_bytes < 20 * _MIB, many
    alone = scenarios(10_000)
    assert alone.grown_bytes < 20 * _MIB, alone
