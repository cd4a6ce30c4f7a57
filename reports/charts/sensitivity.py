"""The chart of elasticities: what changes the throughput of a study's best point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BLUE, INK, VERMILLION

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity

_BAR: Final = 0.7
_BAR_PX: Final = 34
# smallest elasticity that is drawn
_LEAST: Final = 0.005


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
    finding = f"{words}: {found.bottleneck} matters most" if found.bottleneck else words
    caption = "Change of throughput for 1 % more of each parameter; those below 0.005 % are not shown."
    return Chart("sensitivity", "Sensitivity of throughput", (View(x, y, tuple(marks), finding),), caption,
                 height_px=120 + _BAR_PX * len(shown))  # fmt: skip


def _text(one: Elasticity) -> str:
    between = f" ({one.low:+.2f} to {one.high:+.2f})" if one.low is not None and one.high is not None else ""
    return f"{one.name}: {one.says}\n1 % more: {one.value:+.2f} %{between} throughput\n{one.field}, {one.how}"
