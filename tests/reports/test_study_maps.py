"""Maps of a study: there is one where there is data, and it shows these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reports import study_maps
from reports.chart import Boxes, Line
from reports.studied import Studied, studied
from reports.study_folder import read


@pytest.fixture(scope="module")
def study(swept: Path) -> Studied:
    return studied(read(swept))


def test_the_map_has_a_cell_for_each_pair_and_tells_the_lead(study: Studied) -> None:
    chart = study_maps.crossover(study)
    assert chart is not None
    cells = [mark for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert sum(len(mark.left) for mark in cells) == 6
    assert all(label.startswith("+") for mark in cells for label in mark.labels)
    assert study_maps.crossover(replace(study, strategies=False)) is None
    assert study_maps.crossover(replace(study, circumstances=())) is None


def test_nothing_is_better_in_both_than_the_front(study: Studied) -> None:
    chart = study_maps.pareto(study)
    assert chart is not None
    assert chart.choosers == (("time against", ("memory", "cost")),)
    for view in chart.views:
        front = next(mark for mark in view.marks if mark.name == "front")
        assert isinstance(front, Line)
        others = [(x, y) for mark in view.marks if isinstance(mark, Line) for x, y in zip(mark.x, mark.y, strict=True)]
        for x, y in zip(front.x, front.y, strict=True):
            assert not any(a < x and b < y for a, b in others)


def test_a_study_of_one_point_has_no_maps(study: Studied) -> None:
    one = replace(study, points=study.points[:1])
    assert study_maps.crossover(one) is None
    assert study_maps.pareto(one) is None
