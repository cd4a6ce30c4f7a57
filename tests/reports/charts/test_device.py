"""Figures of a device: bounds, lines, bands and measured points."""

from __future__ import annotations

import pytest

from scaleproof.reports.charts.chart import Band, Line
from scaleproof.reports.charts.device import rate_chart, roofline
from scaleproof.reports.charts.still import still
from scaleproof.simulator.analysis.device_rates import IntensitySeries, RateSeries
from scaleproof.simulator.cluster.device.device import Device

DEVICE = Device.model_validate(
    {
        "name": "G",
        "peak": {"bf16": "200 TFLOP/s", "fp32": "50 TFLOP/s"},
        "memory": "8 GiB",
        "memory_bandwidth": "1 TB/s",
    }
)
SERIES = RateSeries(
    "n = 64, k = 64", "bf16", (512.0, 2048.0), (50e12, 100e12), (40e12, 80e12), (60e12, 120e12),
    ((512.0, 50e12), (2048.0, 60e12)),
)  # fmt: skip


def test_the_roofline_bends_where_compute_and_memory_take_equal_times() -> None:
    chart = roofline(DEVICE, [IntensitySeries("products, bf16", ((500.0, 90e12), (2000.0, 150e12)))])
    (view,) = chart.views
    lines = [mark for mark in view.marks if isinstance(mark, Line)]
    assert [line.name for line in lines] == [
        "peak bf16: 200 TFLOP/s", "peak fp32: 50.0 TFLOP/s", "products, bf16",
    ]  # fmt: skip
    assert list(lines[0].x) == [10.0, 200.0, 10_000.0]
    assert list(lines[0].y) == pytest.approx([10, 200, 200])
    assert list(lines[2].y) == [90, 150]
    assert view.finding == "G: compute limits its fastest products of at least 200 FLOP per byte"
    assert still(chart).svg.startswith(b"<?xml")


def test_rates_are_drawn_with_their_interval_and_measured_points() -> None:
    (view,) = rate_chart("products", DEVICE, [SERIES]).views
    band, line, points = view.marks
    assert isinstance(band, Band)
    assert (list(band.low), list(band.high)) == ([40, 80], [60, 120])
    assert isinstance(line, Line)
    assert isinstance(points, Line)
    assert (line.joined, points.joined) == (True, False)
    assert list(points.y) == [50, 60]
    assert view.finding == "G, bf16: measured kernels lie 33.3 % off at the median, 50 % in the interval"


def test_lines_without_measured_points_say_so() -> None:
    (view,) = rate_chart("attention", DEVICE, [SERIES._replace(measured=())]).views
    assert view.finding == "G, bf16: no kernels measured"
    assert len(view.marks) == 2
