"""The section of a run's page on the times of single steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scaleproof.reports.descriptions.results import sections
from scaleproof.reports.read.results import Case, Results
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
TIMES = (0.9, 1.0, 1.0, 1.1, 1.3)


def case(predicted: Run, measured: bool = False) -> Case:
    times_s = tuple(predicted.step_time_s * factor for factor in TIMES)
    run = replace(predicted, origin="measured", step_distribution=None, step_times_s=times_s) if measured else None
    return Case(predicted.scenario, "data_parallel", "", predicted.ranks, predicted.compute_ranks, predicted, run)


def test_a_predicted_run_has_a_chart_of_its_steps_and_their_sources(small: Make) -> None:
    (found,) = (one for one in sections(Results((case(predict(small())),))) if one.name == "Steps")
    ((side, *_, words),) = found.tables[0].rows()
    assert side == "predicted"
    assert "compute jitter" in words
    (chart,) = found.charts()
    assert chart is not None
    assert [mark.name for mark in chart.views[0].marks] == ["predicted"]


def test_measured_steps_are_drawn_next_to_the_prediction_with_their_distance(small: Make) -> None:
    (found,) = (one for one in sections(Results((case(predict(small()), measured=True),))) if one.name == "Steps")
    rows = found.tables[0].rows()
    assert [row[0] for row in rows] == ["predicted", "measured"]
    assert "KS distance" in rows[1][-1]
    (chart,) = found.charts()
    assert chart is not None
    view = chart.views[0]
    assert "KS distance to 5 measured steps" in view.finding
    # one step up at each measured time, up to all steps
    assert max(view.marks[1].y) == pytest.approx(1.0)  # type: ignore[union-attr]
