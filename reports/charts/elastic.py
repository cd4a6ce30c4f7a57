"""Figures of training along events of hosts: throughput over time, predicted and measured, and the loss of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaleproof.reports.charts.chart import Chart, ChartAxis, Line, View
from scaleproof.reports.charts.style import BLUE, GREY, INK, VERMILLION
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.common.units import counted, format_time_s


def throughput(name: str, run: ElasticOutcome) -> Chart:
    """Samples per second over time; zero in pauses."""
    marks = [
        _steps("predicted", VERMILLION, run.predicted, dashed=True),
        _steps("measured", BLUE, run.measured),
        _events(run),
    ]
    most = 1.15 * max(one.samples_per_s for side in (run.predicted, run.measured) for one in side.stretches)
    x, y = ChartAxis("seconds since the first step"), ChartAxis("samples/s", limits=(0.0, most))
    caption = "Throughput without checkpoints; zero while nothing is trained. Crosses: events, as they were predicted to occur."
    view = View(x, y, tuple(marks), _finding(run))
    return Chart(f"{name}-throughput", "Throughput over time", (view,), caption, along=True)


def losses(name: str, run: ElasticOutcome) -> Chart:
    """Loss by step; changes of hosts are vertical lines."""
    steps = [float(step) for step in range(1, len(run.state.losses) + 1)]
    low, high = min(run.state.losses), max(run.state.losses)
    marks = [Line("loss", BLUE, steps, run.state.losses)]
    at = [float(change.resumed_step) for change in run.measured.changes]
    x = [place for step in at for place in (step, step, math.nan)]
    marks.append(Line("hosts change", GREY, x, [end for _ in at for end in (low, high, math.nan)], dashed=True))
    view = View(ChartAxis("step"), ChartAxis("mean loss", zero=False), tuple(marks), run.state.words)
    return Chart(f"{name}-loss", "Loss by step", (view,), "Where a step was taken again, the loss is that of the last time.")


def _finding(run: ElasticOutcome) -> str:
    sides = run.predicted, run.measured
    lost = [str(sum(change.lost_steps for change in side.changes)) for side in sides]
    predicted, measured = (f"{side.total_s:.1f} s" for side in sides)
    return f"{predicted} predicted, {measured} measured; steps lost: {' and '.join(lost)}"


def _steps(name: str, colour: str, timeline: ElasticTimeline, dashed: bool = False) -> Line:
    x: list[float] = []
    y: list[float] = []
    texts: list[str] = []
    for stretch in timeline.stretches:
        words = f"{counted(stretch.hosts, 'host')}, {format_time_s(stretch.step_s)} a step"
        x += [stretch.begin_s, stretch.begin_s, stretch.end_s, stretch.end_s]
        y += [0.0, stretch.samples_per_s, stretch.samples_per_s, 0.0]
        texts += [f"{name}: {words}"] * 4
    return Line(name, colour, x, y, texts, dashed=dashed)


def _events(run: ElasticOutcome) -> Line:
    changes = run.predicted.changes
    texts = ["; ".join(change.causes) for change in changes]
    at: Sequence[float] = [change.at_s for change in changes]
    return Line("event", INK, at, [0.0] * len(at), texts, "x", joined=False)
