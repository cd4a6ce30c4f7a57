"""Figures of collectives: time by size with its 90 % interval and measured times, and measured over predicted time by size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, Mark, View, log_ticks
from scaleproof.reports.charts.style import BLUE, VERMILLION
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve, MeasuredSize
from scaleproof.simulator.common.units import format_bytes, format_interval_s, format_percent, format_time_s

_INTERVAL: Final = "90 % interval"
_US: Final = 1e6
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHOWN: Final = ("time", "measured over predicted")
_MARGIN: Final = 1.25
_RATIOS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# Octaves between labels of sizes.
_OCTAVES: Final = 5


def collective_chart(name: str, curves: Sequence[CollectiveCurve]) -> Chart:
    """Times of one operation on one system, by group. name: of the file. Curves have points each."""
    largest_first = sorted(curves, key=lambda curve: (-len(curve.measured), -curve.ranks))
    groups = tuple(dict.fromkeys(curve.group for curve in largest_first))
    shows = _SHOWN if any(curve.measured for curve in curves) else _SHOWN[:1]
    choosers = {"group": groups, "shown": shows}
    several = {title: options for title, options in choosers.items() if len(options) > 1}
    views = []
    for curve in largest_first:
        for shown in shows:
            chosen = {"group": curve.group, "shown": shown}
            views.append(_view(curve, shown, tuple(chosen[title] for title in several)))
    caption = "Line: predicted; shaded: its 90 % interval. Circles: measured." if len(shows) > 1 else "Shaded: 90 % interval."
    return Chart(name, f"{curves[0].op} on {curves[0].system}", tuple(views), caption, tuple(several.items()))


def _view(curve: CollectiveCurve, shown: str, choices: tuple[str, ...]) -> View:
    sizes = [point.size_bytes for point in curve.points]
    x_axis = ChartAxis("size", log=True, ticks=_size_ticks(min(sizes), max(sizes)), limits=_widened(min(sizes), max(sizes)))
    marks = _times(curve) if shown == _SHOWN[0] else _ratios(curve)
    found = [end for mark in marks for ends in _values(mark) for end in ends if end > 0]
    low, high = _widened(min(found), max(found))
    is_time = shown == _SHOWN[0]
    ticks = log_ticks(low, high) if is_time else tuple((ratio, f"{ratio:g}") for ratio in _RATIOS if low <= ratio <= high)
    title = "time in us" if is_time else "measured over predicted time"
    y_axis = ChartAxis(title, log=True, ticks=ticks, limits=(low, high))
    finding = f"{curve.op}, {curve.group}" + (f": {curve.finding}" if curve.finding else "")
    return View(x_axis, y_axis, marks, finding, choices)


def _times(curve: CollectiveCurve) -> tuple[Mark, ...]:
    sizes = [point.size_bytes for point in curve.points]
    low, middle, high = (
        [seconds * _US for seconds in column]
        for column in zip(*((point.low_s, point.seconds, point.high_s) for point in curve.points), strict=True)
    )
    texts = [f"{format_bytes(point.size_bytes)}: predicted {format_time_s(point.seconds)}" for point in curve.points]
    marks: list[Mark] = [Band(_INTERVAL, BLUE, sizes, low, high), Line("predicted", BLUE, sizes, middle, texts)]
    return (*marks, *_measured(curve, [one.measured_s * _US for one in curve.measured]))


def _ratios(curve: CollectiveCurve) -> tuple[Mark, ...]:
    """Measured over predicted times, with the interval over the prediction."""
    sizes = [point.size_bytes for point in curve.points]
    low, high = ([getattr(point, end) / point.seconds for point in curve.points] for end in ("low_s", "high_s"))
    marks: list[Mark] = [Band(_INTERVAL, BLUE, sizes, low, high), Line("predicted", BLUE, sizes, [1.0] * len(sizes))]
    return (*marks, *_measured(curve, [one.measured_s / one.predicted.seconds for one in curve.measured]))


def _measured(curve: CollectiveCurve, values: Sequence[float]) -> list[Mark]:
    if not curve.measured:
        return []
    sizes = [one.predicted.size_bytes for one in curve.measured]
    texts = [_text(one) for one in curve.measured]
    return [Line("measured", VERMILLION, sizes, values, texts, symbol="circle", joined=False)]


def _text(one: MeasuredSize) -> str:
    predicted = f"predicted {format_time_s(one.predicted.seconds)}"
    interval = format_interval_s(one.predicted.low_s, one.predicted.high_s)
    size = format_bytes(one.predicted.size_bytes)
    return f"{size}: measured {format_time_s(one.measured_s)}\n{predicted} ({interval}), {format_percent(one.error)} off"


def _values(mark: Mark) -> Iterator[Sequence[float]]:
    if isinstance(mark, Band):
        yield from (mark.low, mark.high)
    elif isinstance(mark, Line):
        yield mark.y


def _widened(low: float, high: float) -> tuple[float, float]:
    return low / _MARGIN, high * _MARGIN


def _size_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Ticks of sizes in bytes, at distances of a factor of 32, or of 4 on short axes."""
    octaves = math.log2(high / low)
    step = _OCTAVES if octaves > 2 * _OCTAVES else 2
    powers = range(0, 60, step)
    return tuple((2.0**power, _size(power)) for power in powers if low / _MARGIN <= 2.0**power <= high * _MARGIN)


def _size(power: int) -> str:
    return f"{2 ** (power % 10)} {_UNITS[power // 10]}"
