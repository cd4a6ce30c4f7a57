"""Chart of the times of single steps: predicted distribution and measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import Chart, ChartAxis, Line, View
from scaleproof.reports.charts.style import BLUE, VERMILLION
from scaleproof.reports.read.results import Case
from scaleproof.reports.text import percent, time_unit
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import PERCENTS

# number of scenarios that can be chosen; the table has all
_MOST_VIEWS: Final = 12
_HEIGHT_PX: Final = 300


def steps(cases: Sequence[Case]) -> Chart | None:
    """Share of steps that are shorter than a duration, of one scenario at a time; None without predicted distributions."""
    shown = [(case, case.predicted) for case in cases if case.predicted and case.predicted.step_distribution][:_MOST_VIEWS]
    if not shown:
        return None
    names = tuple(case.scenario for case, _ in shown)
    several = len(set(names)) == len(names) > 1
    views = tuple(_view(case, run, (case.scenario,) if several else ()) for case, run in (shown if several else shown[:1]))
    caption = "Share of steps that take at most this long. Line: predicted, from the 1st to the 99th percentile."
    if any(case.measured is not None for case, _ in shown):
        caption += " Steps: measured."
    choosers = (("scenario", names),) if several else ()
    return Chart("steps", "Times of single steps", views, caption, choosers, height_px=_HEIGHT_PX)


def _view(case: Case, predicted: Run, choices: tuple[str, ...]) -> View:
    found = predicted.step_distribution
    assert found is not None
    unit, per_s = time_unit(predicted.step_time_s)
    texts = [
        f"{percent(share)} take at most {format_time_s(at)}" for share, at in zip(PERCENTS, found.percentiles_s, strict=True)
    ]
    marks = [Line("predicted", BLUE, [at * per_s for at in found.percentiles_s], list(PERCENTS), texts)]
    measured_s = sorted(case.measured.step_times_s) if case.measured else []
    median_s, late_s = (format_time_s(found.quantile_s(share)) for share in (0.5, 0.95))
    finding = f"95 % of steps take at most {late_s}, the median step {median_s}"
    if compared := found.compared(measured_s):
        # one step up at each measured time
        ends = np.repeat(measured_s, 2) * per_s
        shares = np.repeat(np.arange(len(measured_s) + 1) / len(measured_s), 2)[1:-1]
        marks.append(Line("measured", VERMILLION, ends.tolist(), shares.tolist()))
        finding += f"; KS distance to {compared.steps} measured steps {compared.distance:.2f}"
    x, y = ChartAxis(f"step time, {unit}", zero=False), ChartAxis("share of steps", percent=True, limits=(0.0, 1.0))
    return View(x, y, tuple(marks), finding, choices)
