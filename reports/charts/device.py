"""Figures of a device: its roofline with measured kernels, and achieved rates by size with their 90 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, Mark, View, log_ticks, looks
from scaleproof.reports.charts.style import GREY, INK
from scaleproof.simulator.analysis.device_facts import peaks
from scaleproof.simulator.analysis.device_rates import IntensitySeries, RateSeries
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.units import format_count, format_percent

_TERA: Final = 1e12
# FLOPs per byte that a roofline shows.
_INTENSITIES: Final = (10.0, 10_000.0)
_X_TITLES: Final = {"products": "rows m", "attention": "tokens of a sequence"}
_HEADINGS: Final = {
    "products": "Rate of matrix products by rows",
    "attention": "Rate of causal attention by length of the sequences",
}


def roofline(device: Device, series: Sequence[IntensitySeries]) -> Chart:
    """Peak rates and memory bandwidth of a device as bounds on the rate by intensity, and the measured rates of kernels."""
    low, high = _INTENSITIES
    marks: list[Mark] = []
    bandwidth_Bps = device.memory_bandwidth_Bps
    for number, (names, rate) in enumerate(peaks(device)):
        knee = min(max(rate / bandwidth_Bps, low), high)
        y = [min(rate, x * bandwidth_Bps) / _TERA for x in (low, knee, high)]
        text = f"peak {', '.join(names)}: {format_count(rate)}FLOP/s"
        marks.append(Line(text, INK if number == 0 else GREY, [low, knee, high], y, dashed=number > 0))
    for one, (colour, symbol) in zip(series, looks(len(series)), strict=True):
        x, y = (list(column) for column in zip(*one.points, strict=True))
        marks.append(Line(one.name, colour, x, [rate / _TERA for rate in y], symbol=symbol, joined=False))
    peak = max(device.peak_flops.values())
    least = min([low * bandwidth_Bps, *(rate for one in series for _, rate in one.points)]) / _TERA
    balance = peak / bandwidth_Bps
    finding = f"{device.name}: compute limits its fastest products of at least {balance:,.0f} FLOP per byte"
    axes = ChartAxis("FLOPs per byte of memory traffic", log=True, ticks=log_ticks(low, high), limits=_INTENSITIES)
    top = peak / _TERA * 2
    y_axis = ChartAxis("TFLOP/s", log=True, ticks=log_ticks(least, top), limits=(least, top))
    caption = (
        "Lines: peak rates and memory bandwidth. Symbols: measured kernels, by the bytes that they read and write at least."
    )
    return Chart("roofline", "Roofline", (View(axes, y_axis, tuple(marks), finding),), caption)


def rate_chart(name: str, device: Device, series: Sequence[RateSeries]) -> Chart:
    """Predicted rates in a short burst by size, with their 90 % intervals and measured rates. name: products or attention."""
    marks: list[Mark] = []
    for one, (colour, symbol) in zip(series, looks(len(series)), strict=True):
        middle, low, high = ([rate / _TERA for rate in rates] for rates in (one.rates_flops, one.low_flops, one.high_flops))
        marks += [Band(one.name, colour, one.sizes, low, high), Line(one.name, colour, one.sizes, middle)]
        if one.measured:
            x, y = (list(column) for column in zip(*one.measured, strict=True))
            marks.append(Line(one.name, colour, x, [rate / _TERA for rate in y], symbol=symbol, joined=False))
    sizes = [size for one in series for size in one.sizes]
    x_axis = ChartAxis(_X_TITLES[name], log=True, ticks=log_ticks(min(sizes), max(sizes)))
    precision = series[0].precision
    finding = f"{device.name}, {precision}: {_deviation(series) or 'no kernels measured'}"
    caption = "Lines: predicted, in a short burst. Shaded: 90 % interval. Symbols: measured."
    return Chart(name, _HEADINGS[name], (View(x_axis, ChartAxis(f"TFLOP/s in {precision}"), tuple(marks), finding),), caption)


def _deviation(series: Sequence[RateSeries]) -> str:
    """How near the lines are to the measured rates; empty without any."""
    errors, inside = [], []
    for one in series:
        for size, rate in one.measured:
            lines = (one.rates_flops, one.low_flops, one.high_flops)
            predicted, low, high = (float(np.interp(np.log(size), np.log(one.sizes), line)) for line in lines)
            errors.append(abs(predicted / rate - 1))
            inside.append(low <= rate <= high)
    if not errors:
        return ""
    median, share = float(np.median(errors)), sum(inside) / len(inside)
    return f"measured kernels lie {format_percent(median)} off at the median, {format_percent(share, 0)} in the interval"
