"""Figures of a fit: predicted over measured step time by number of GPUs, and constants before and after the runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.chart import Band, Boxes, Chart, ChartAxis, Line, Mark, View, whiskers
from scaleproof.reports.charts.style import BLUE, GREEN, GREY, INK, SKY, VERMILLION
from scaleproof.reports.text import signed_percent
from scaleproof.simulator.analysis.fit_record import FitConstant, FitRecord, FitRun, FitTarget
from scaleproof.simulator.common.units import counted, format_time_s

_RATIOS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_FEW_RATIOS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_WIDE: Final = 4.0
# Half a 90 % interval of a normal variable in standard deviations.
_REACH: Final = 1.645
# Distance of neighbouring runs of one number of GPUs along the logarithmic axis, and the most that all of them take.
_DISTANCE: Final = 0.035
_WIDEST: Final = 0.5
_MARGIN: Final = 1.1


def by_scale(record: FitRecord) -> Chart:
    """Measured over predicted step time by number of GPUs, with 90 % intervals; the target has an interval alone."""
    target, most = record.target, max(run.gpus for run in record.given)
    runs = sorted(record.runs, key=lambda run: run.measured_s)
    places = dict(zip(map(id, runs), _places(runs), strict=True))
    ratios = [ratio for run in runs for ratio in (run.measured_s / run.before_s, *_ratios(run))]
    ratios += [target.low_s / target.after_s, target.high_s / target.after_s]
    low, high = min(ratios) / _MARGIN, max(ratios) * _MARGIN
    counts = sorted({target.gpus, *(run.gpus for run in runs)})
    ends = counts[0] / 1.7, counts[-1] * 1.7
    marks: list[Mark] = []
    if counts[-1] > most:
        marks.append(Band("extrapolated", GREY, [most * 1.3, ends[1]], [low] * 2, [high] * 2))
    marks.append(Line("predicted", INK, ends, [1.0, 1.0], dashed=True))
    marks.append(_points("before", GREY, runs, places, [run.measured_s / run.before_s for run in runs], hollow=True))
    for name, colour, some in (("given", BLUE, record.given), ("checked", VERMILLION, record.checked)):
        if some:
            marks.append(whiskers(name, colour, [(places[id(run)], *_ratios(run)[1:]) for run in some]))
            marks.append(_points(name, colour, some, places, [_ratios(run)[0] for run in some]))
    marks += _target_marks(target)
    x = ChartAxis("GPUs", log=True, ticks=tuple((float(one), f"{one:,}") for one in counts), limits=ends)
    shown = _RATIOS if high / low < _WIDE else _FEW_RATIOS
    ticks = tuple((ratio, f"{ratio:g}") for ratio in shown if low <= ratio <= high)
    y = ChartAxis("measured over predicted step time", log=True, ticks=ticks, limits=(low, high))
    caption = "Circles: measured over predicted time after the fit, open: before. Bars: 90 % intervals of the prediction. "
    caption += "The target is not measured; the shaded part has more GPUs than any run that was given."
    heading = "Measured over predicted step time by number of GPUs"
    return Chart("scale", heading, (View(x, y, tuple(marks), _finding(record)),), caption)


def _finding(record: FitRecord) -> str:
    runs = record.checked or record.given
    inside = sum(run.is_inside for run in runs)
    what = "runs that were not given" if record.checked else "given runs"
    return f"{inside} of {len(runs)} {what} are in their 90 % interval"


def _ratios(run: FitRun) -> tuple[float, float, float]:
    """Measured time and both ends of the interval over the predicted time."""
    return run.measured_s / run.after_s, run.low_s / run.after_s, run.high_s / run.after_s


def _places(runs: Sequence[FitRun]) -> Iterator[float]:
    """Places of runs along the axis of GPUs, side by side where they have the same number."""
    totals = {gpus: sum(run.gpus == gpus for run in runs) for gpus in {run.gpus for run in runs}}
    seen = dict.fromkeys(totals, 0)
    for run in runs:
        spacing = min(_DISTANCE * 2, _WIDEST / max(1, totals[run.gpus] - 1))
        yield run.gpus * math.exp(spacing * (seen[run.gpus] - (totals[run.gpus] - 1) / 2))
        seen[run.gpus] += 1


def _points(
    name: str, colour: str, runs: Sequence[FitRun], places: dict[int, float], ratios: Sequence[float], hollow: bool = False
) -> Line:
    texts = [
        f"{run.place}: {run.layout} on {counted(run.gpus, 'GPU')}\nmeasured {format_time_s(run.measured_s)}, predicted "
        f"{format_time_s(run.after_s)} ({signed_percent(run.error_after)}), before {format_time_s(run.before_s)}"
        for run in runs
    ]
    return Line(name, colour, [places[id(run)] for run in runs], ratios, texts, "circle", joined=False, hollow=hollow)


def _target_marks(target: FitTarget) -> list[Mark]:
    at = target.gpus * math.exp(-_WIDEST * 0.7)
    ends = (at, target.low_s / target.after_s, target.high_s / target.after_s)
    text = f"{target.name}: {target.layout}\npredicted {format_time_s(target.after_s)}"
    return [
        whiskers("target", GREEN, [ends]),
        Line("target", GREEN, [at], [1.0], [text], "diamond", joined=False),
    ]


def constants(record: FitRecord) -> Chart:
    """Constants before and after the runs in standard deviations of their priors, one row for each."""
    shown = record.constants[::-1]
    rows = [float(row) for row in range(len(shown))]
    low = min(-_REACH, *(one.offset - _REACH * one.deviation for one in shown)) - 0.2
    high = max(_REACH, *(one.offset + _REACH * one.deviation for one in shown)) + 0.2
    before = Boxes(
        "before", SKY, [-_REACH] * len(rows), [2 * _REACH] * len(rows), rows, [0.4] * len(rows), [_prior(one) for one in shown]
    )
    spans = [(one.offset - _REACH * one.deviation, one.offset + _REACH * one.deviation) for one in shown]
    x = [end for left, right in spans for end in (left, right, math.nan)]
    bars = Line("after", BLUE, x, [place for row in rows for place in (row, row, math.nan)])
    texts = [f"{one.name}: {one.value}, 90 % interval {one.low} to {one.high}" for one in shown]
    points = Line("after", BLUE, [one.offset for one in shown], rows, texts, "circle", joined=False)
    zero = Line("shipped value", INK, [0.0, 0.0], [-0.5, len(rows) - 0.5], dashed=True)
    moved = sum(one.moved for one in shown)
    view = View(
        ChartAxis("distance from the shipped value in standard deviations of the prior", limits=(low, high)),
        ChartAxis(
            "", ticks=tuple((row, one.name) for row, one in zip(rows, shown, strict=True)), limits=(-0.6, len(rows) - 0.4)
        ),
        (before, zero, bars, points),
        f"The runs moved {moved} of {counted(len(shown), 'constant')}",
    )
    caption = "Boxes: 90 % interval before the runs. Bars: after them; one as long as its box was not learned."
    return Chart("constants", "Constants before and after the runs", (view,), caption, height_px=60 + 44 * len(rows))


def _prior(one: FitConstant) -> str:
    return f"{one.name}: {one.prior}, 90 % interval {one.prior_low} to {one.prior_high}"
