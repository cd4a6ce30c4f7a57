"""Figures of the proof: errors of predictions, coverage of intervals, and whether the predicted best was the best."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.proving.figures import CaseOutcome, figures, ranking


def _outcome(predicted_s: float, measured_s: float | None, group: str = "g", family: str = "ring") -> CaseOutcome:
    return CaseOutcome("a", group, family, "paced", 4, predicted_s, 0.9 * predicted_s, 1.1 * predicted_s, measured_s)


def test_errors_are_relative_to_measurements() -> None:
    outcomes = [_outcome(1.1, 1.0), _outcome(0.8, 1.0), _outcome(1.0, 1.0), _outcome(1.0, None)]
    reported = figures(outcomes)["paced"]
    assert reported["cases"] == 3
    assert reported["median"] == pytest.approx(0.1)
    assert reported["p90"] == pytest.approx(0.18)  # between 0.1 and 0.2
    assert reported["coverage90"] == pytest.approx(2 / 3)  # 1.0 is not between 0.72 and 0.88


@pytest.mark.parametrize(("measured_s", "right"), [((1.0, 2.0), 1), ((1.03, 1.0), 1), ((1.04, 1.0), 0)])
def test_the_predicted_best_counts_if_it_is_nearly_the_best(measured_s: tuple[float, float], right: int) -> None:
    group = [_outcome(1.0, measured_s[0]), _outcome(1.5, measured_s[1])]
    assert ranking(group) == {"groups": 1, "best_right_or_within_3pct": right}


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=20), st.floats(0.1, 10))
def test_figures_do_not_depend_on_the_unit_of_time(times_s: list[tuple[float, float]], unit: float) -> None:
    outcomes = [_outcome(*pair, group=str(number // 3)) for number, pair in enumerate(times_s)]
    scaled = [
        replace(
            one,
            predicted_s=one.predicted_s * unit,
            low_s=one.low_s * unit,
            high_s=one.high_s * unit,
            measured_s=one.measured_s and one.measured_s * unit,
        )
        for one in outcomes
    ]
    first, second = figures(outcomes)["paced"], figures(scaled)["paced"]
    assert second["median"] == pytest.approx(first["median"], abs=1e-9)
    assert second["p90"] == pytest.approx(first["p90"], abs=1e-9)


def test_undisturbed_cases_are_counted_separately() -> None:
    quiet, disturbed = _outcome(1.0, 1.0), replace(_outcome(1.0, 2.0), taken=0.5)
    reported = figures([quiet, disturbed])
    assert (reported["paced"]["cases"], reported["undisturbed"]["paced"]["cases"]) == (2, 1)
    assert reported["paced"]["median"] == pytest.approx(0.25)
    assert reported["undisturbed"]["paced"]["median"] == 0.0
