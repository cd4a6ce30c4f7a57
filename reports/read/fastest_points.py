"""The selected points of a study: the fastest one of each strategy, predicted again in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BLUE, INK, VERMILLION
from scaleproof.reports.read.study import StudyTable
from scaleproof.simulator.common.errors import ScaleproofError, one_line
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity

MOST_CHOSEN: Final = 6
_BAR: Final = 0.7
_BAR_PX: Final = 34
# smallest elasticity that is drawn
_LEAST: Final = 0.005


@dataclass(frozen=True)
class FastestPoint:
    """The fastest point of a strategy. sets: the `--set` options that turn the study's scenario into the point's."""

    line: str
    point: pd.Series[Any]
    scenario: Scenario
    sets: tuple[str, ...]
    run: Run


def chosen(study: StudyTable, notes: list[str]) -> list[FastestPoint]:
    """The fastest point of each strategy under the circumstances of the best point, the best first. Points that cannot be
    predicted again are noted."""
    best, definition = study.best, study.found.study
    if best is None or definition is None:
        return []
    good = study.under(best["choices"])
    result = []
    for line in study.lines[:MOST_CHOSEN]:
        mine = good[good["line"] == line]
        if mine.empty:
            continue
        point = mine.iloc[int(mine["rate"].argmax())]
        places = definition.places_of(int(point["point"]))
        try:
            scenario = definition.scenario(places)
            run = predict(scenario)
        except ScaleproofError as error:
            notes.append(f"point {point['point']} cannot be predicted again: {one_line(error)}")
            continue
        sets = tuple(axis.overrides()[place] for axis, place in zip(definition.axes, places, strict=True))
        result.append(FastestPoint(line, point, scenario, sets, run))
    return result


def sensitivity_of(best: FastestPoint, notes: list[str]) -> Sensitivity | None:
    """The elasticities of the best point's throughput; None, with a note, if they cannot be computed."""
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity

    try:
        return sensitivity(best.scenario)
    except ScaleproofError as error:
        notes.append(f"the sensitivity of throughput cannot be computed: {one_line(error)}")
        return None


def sensitivity_chart(found: Sensitivity, words: str) -> Chart | None:
    """A bar chart of elasticities, the largest first."""
    shown = [one for one in (*found.cluster, *found.training) if one.value is not None and abs(one.value) >= _LEAST]
    shown.sort(key=lambda one: -abs(one.value or 0.0))
    if not shown:
        return None
    marks: list[Mark] = []
    for name, colour, some in (
        ("more is faster", BLUE, [(i, one) for i, one in enumerate(shown) if (one.value or 0.0) > 0]),
        ("more is slower", VERMILLION, [(i, one) for i, one in enumerate(shown) if (one.value or 0.0) < 0]),
    ):
        if some:
            values = [one.value or 0.0 for _, one in some]
            left, width = [min(0.0, value) for value in values], [abs(value) for value in values]
            rows, texts = [float(i) for i, _ in some], [_text(one) for _, one in some]
            marks.append(Boxes(name, colour, left, width, rows, [_BAR] * len(some), texts))
    for i, one in enumerate(shown):
        if one.low is not None and one.high is not None:
            marks.append(Line("90 % interval", INK, [one.low, one.high], [i, i], [_text(one)] * 2))
    ends = [value for one in shown for value in (one.value, one.low, one.high, 0.0) if value is not None]
    room = (max(ends) - min(ends)) * 0.04
    x = ChartAxis("% of throughput for 1 % of the parameter", limits=(min(ends) - room * (min(ends) < 0), max(ends) + room))
    ticks = tuple((float(i), f"{one.name} ({one.says})") for i, one in enumerate(shown))
    y = ChartAxis("", ticks=ticks, limits=(len(shown) - 0.4, -0.6))
    bottleneck = found.bottleneck
    finding = f"{words}: {bottleneck.name} matters most" if bottleneck else words
    caption = "Change of throughput for 1 % more of each parameter; those below 0.005 % are not shown."
    return Chart("sensitivity", "Sensitivity of throughput", (View(x, y, tuple(marks), finding),), caption,
                 height_px=120 + _BAR_PX * len(shown))  # fmt: skip


def _text(one: Elasticity) -> str:
    between = f" ({one.low:+.2f} to {one.high:+.2f})" if one.low is not None and one.high is not None else ""
    return f"{one.name}: {one.says}\n1 % more: {one.value:+.2f} %{between} throughput\n{one.field}, {one.how}"
