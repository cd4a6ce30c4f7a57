"""Curves of a study: present where there is data, with the right values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.reports.charts.chart import Chart, Line
from scaleproof.reports.charts.studies import bars as study_bars
from scaleproof.reports.charts.studies import curves as study_curves
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.study import StudyTable, studied
from scaleproof.reports.read.study_folder import read
from tests.reports.example import CASES, make_run


@pytest.fixture(scope="module")
def study(swept: Path) -> StudyTable:
    return studied(read(swept))


def _line(chart: Chart | None, name: str, view: int = 0) -> Line:
    assert chart is not None
    return next(mark for mark in chart.views[view].marks if isinstance(mark, Line) and mark.name == name)


@pytest.mark.full
def test_throughput_has_a_view_for_each_circumstance_with_the_best_first(study: StudyTable) -> None:
    chart = study_curves.throughput(study)
    assert chart is not None
    assert chart.choosers == (("network bandwidth", ("10 Gbit/s", "40 Gbit/s")),)
    assert [view.choices for view in chart.views] == [("40 Gbit/s",), ("10 Gbit/s",)]
    ring = _line(chart, "ring")
    assert list(ring.x) == [2, 4, 8]
    assert list(ring.y) == sorted(ring.y)
    assert ring.texts[0].startswith("ring\n2 GPUs\n")
    assert "8 GPUs: ring" in chart.views[0].finding


def test_measured_points_are_drawn_above_curves(study: StudyTable) -> None:
    case = Case("ring-2", "", "", 2, 2, None, make_run("measured", CASES[0]))
    measured = _line(study_curves.throughput(study, [case]), "measured")
    assert (list(measured.x), list(measured.y)) == ([2], pytest.approx([32 / 0.0324]))


def test_memory_is_drawn_against_capacity(study: StudyTable) -> None:
    chart = study_curves.memory(study)
    assert list(_line(chart, "capacity of a rank").y) == pytest.approx([8, 8, 8], rel=0.2)


def test_a_study_of_one_point_has_no_curves(study: StudyTable) -> None:
    one = replace(study, points=study.points[:1])
    for draw in (study_curves.throughput, study_curves.efficiency, study_curves.memory):
        assert draw(one) is None


def test_bars_name_a_fastest_alternative_only_if_it_is_clearly_ahead(study: StudyTable) -> None:
    points = study.points.copy()
    points.loc[points["line"] == "ring", "rate"] = 1010.0
    for rate, finding in ((1000.0, ": ring 1,010, servers 1,000 "), (900.0, ": ring is fastest, 1,010 ")):
        points.loc[points["line"] == "servers", "rate"] = rate
        chart = study_bars.throughput(replace(study, points=points))
        assert chart is not None
        assert all(finding in view.finding for view in chart.views)
