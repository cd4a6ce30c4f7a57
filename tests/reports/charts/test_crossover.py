"""Charts of crossover maps: they show every strategy that wins somewhere, and borders within the map."""

from __future__ import annotations

import math

import pytest

from scaleproof.reports.charts.chart import Boxes, Line
from scaleproof.reports.charts.crossover import strategy_map
from scaleproof.simulator.analysis.crossover.axes import MapAxis
from scaleproof.simulator.analysis.crossover.crossover import Border, Crossover, Point


def a_map(*borders: Border) -> Crossover:
    """Two rows: in the first a ring wins from 1e9 on, in the second nothing fits."""
    x = MapAxis(field="cluster.network.bandwidth", values=(1e8, 1e10))
    y = MapAxis(field="strategy.workers", values=(2, 4))
    rates = {(1e8, "ring"): 1.0, (1e8, "ps-1"): 2.0, (1e10, "ring"): 3.0, (1e10, "ps-1"): 2.0}
    points = tuple(
        Point(
            x=at, y=row, strategy=name, samples_per_s=rate, step_time_s=1 / rate, fits=row == 2, wins=row == 2 and rate == best
        )
        for row in (2, 4)
        for (at, name), rate in rates.items()
        for best in [max(one for (place, _), one in rates.items() if place == at)]
    )
    return Crossover(scenario="a map", x=x, y=y, strategies={"ring": "", "ps-1": ""}, points=points, borders=borders)


@pytest.mark.parametrize("high", [None, 2e9])
def test_each_winner_has_its_part_of_a_row_and_borders_stay_on_the_map(high: float | None) -> None:
    found = a_map(Border(y=2, x=1e9, below="ps-1", above="ring", low=0.0, high=high))
    (view,) = strategy_map(found, "").views
    bands = {mark.name: mark for mark in view.marks if isinstance(mark, Boxes)}
    assert {name: (one.left, one.middle) for name, one in bands.items()} == {
        "ring": ([9.0], [0.0]),
        "ps-1": ([8.0], [0.0]),
        "none fits": ([8.0], [1.0]),
    }
    (between,) = [mark for mark in view.marks if isinstance(mark, Line) and mark.name == "90 % interval"]
    assert between.x[:2] == pytest.approx([8.0, 10.0 if high is None else math.log10(2e9)])


def test_a_map_without_borders_has_no_lines() -> None:
    assert all(isinstance(mark, Boxes) for mark in strategy_map(a_map(), "").views[0].marks)
