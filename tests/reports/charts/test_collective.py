from __future__ import annotations

from scaleproof.reports.charts.chart import Band, Line
from scaleproof.reports.charts.collective import collective_chart
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve, MeasuredSize, PredictedSize

POINTS = tuple(PredictedSize(2.0**power, 1e-5 * power, 0.8e-5 * power, 1.3e-5 * power) for power in (10, 20, 30))


def _curve(ranks: int, *times_s: float) -> CollectiveCurve:
    measured = tuple(MeasuredSize(time_s, point) for time_s, point in zip(times_s, POINTS, strict=False))
    return CollectiveCurve("lab", "all_reduce", ranks, 1, "", POINTS, measured)


def test_measured_times_lie_over_the_curve_and_its_interval() -> None:
    view = collective_chart("lab", [_curve(8, 1.1e-4, 2e-4)]).views[0]
    band, predicted, measured = view.marks
    assert isinstance(band, Band)
    assert isinstance(predicted, Line)
    assert isinstance(measured, Line)
    assert measured.x == [2**10, 2**20]
    assert all(low < y < high for low, y, high in zip(band.low, predicted.y, band.high, strict=True))
    assert view.x.log
    assert view.y.log


def test_one_view_per_group_and_quantity_can_be_chosen() -> None:
    chart = collective_chart("lab", [_curve(4, 1e-4), _curve(8, 1e-4)])
    assert [view.choices for view in chart.views] == [
        (group, shown) for group in ("8 ranks on 1 node", "4 ranks on 1 node") for shown in ("time", "measured over predicted")
    ]
    ratios = chart.views[1].marks[2]
    assert isinstance(ratios, Line)
    assert list(ratios.y) == [1.0]
