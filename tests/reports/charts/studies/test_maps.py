"""Maps of a study: present where there is data, with the right values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.reports.charts.chart import Boxes, Line
from scaleproof.reports.charts.studies import maps as study_maps
from scaleproof.reports.read.study import StudyTable, studied
from scaleproof.reports.read.study_folder import read


@pytest.fixture(scope="module")
def study(swept: Path) -> StudyTable:
    return studied(read(swept))


def test_the_map_has_a_cell_for_each_pair_and_shows_the_lead(study: StudyTable) -> None:
    chart = study_maps.crossover(study)
    assert chart is not None
    cells = [mark for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert sum(len(mark.left) for mark in cells) == 6
    assert all(label.startswith("+") for mark in cells for label in mark.labels)
    assert chart.views[0].x.title == "network bandwidth, Gbit/s"
    assert [words for _, words in chart.views[0].x.ticks] == ["10", "40"]
    assert study_maps.crossover(replace(study, strategies=False)) is None
    assert study_maps.crossover(replace(study, circumstances=())) is None


def test_small_leads_count_as_ties(study: StudyTable) -> None:
    rates = study.points["rate"].where(study.points["line"] != "servers", 1.0)
    tied = replace(study, points=study.points.assign(rate=rates.where(rates == 1.0, 1.009)))
    chart = study_maps.crossover(tied)
    assert chart is not None
    labels = [label for mark in chart.views[0].marks if isinstance(mark, Boxes) for label in mark.labels]
    assert set(labels) == {"even"}
    assert study_maps._map_finding([("a", "+5 %"), ("b", "even"), ("", ""), ("a", "even")]) == (
        "The fastest, by share of the map: a 25\u202f%, none 25\u202f%, even in 50\u202f%"
    )
    assert study_maps._map_finding([("a", "even"), ("a", "+5 %")]) == "a is the fastest everywhere"


def test_no_point_dominates_the_pareto_front(study: StudyTable) -> None:
    charts = study_maps.pareto(study)
    assert [chart.name for chart in charts] == ["pareto-memory", "pareto-cost"]
    for chart in charts:
        (view,) = chart.views
        front = next(mark for mark in view.marks if mark.name == "Pareto front")
        assert isinstance(front, Line)
        others = [(x, y) for mark in view.marks if isinstance(mark, Line) for x, y in zip(mark.x, mark.y, strict=True)]
        for x, y in zip(front.x, front.y, strict=True):
            assert not any(a < x and b < y for a, b in others)
