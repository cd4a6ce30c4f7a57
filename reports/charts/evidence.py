"""Chart of published runs: predicted against measured step times."""

from __future__ import annotations

from collections.abc import Sequence

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, View, log_ticks, looks
from scaleproof.reports.charts.style import GREY, INK
from scaleproof.reports.pages.result_text import CLOSE
from scaleproof.reports.pages.text import percent
from scaleproof.simulator.analysis.evidence import PublishedRun
from scaleproof.simulator.common.units import format_time_s

# factor by which the axes are longer than the range of the times
_MARGIN = 1.35


def evidence(runs: Sequence[PublishedRun]) -> Chart | None:
    """Predicted against measured milliseconds per step on logarithmic axes, by device; None without runs."""
    if not runs:
        return None
    times_ms = [time_s * 1e3 for run in runs for time_s in (run.measured_s, run.predicted_s)]
    ends = [min(times_ms) / _MARGIN, max(times_ms) * _MARGIN]
    near = Band(f"±{percent(CLOSE)}", GREY, ends, [end * (1 - CLOSE) for end in ends], [end * (1 + CLOSE) for end in ends])
    devices = list(dict.fromkeys(run.device for run in runs))
    points = []
    for device, (colour, symbol) in zip(devices, looks(len(devices)), strict=True):
        mine = [run for run in runs if run.device == device]
        x, y = [run.measured_s * 1e3 for run in mine], [run.predicted_s * 1e3 for run in mine]
        points.append(Line(device, colour, x, y, [_text(run) for run in mine], symbol, joined=False))
    measured, predicted = (
        ChartAxis(f"{side} ms per step", log=True, ticks=log_ticks(*ends), limits=(ends[0], ends[1]))
        for side in ("measured", "predicted")
    )
    close = sum(abs(run.error) <= CLOSE for run in runs)
    finding = f"{close} of {len(runs)} similar published runs are predicted within {percent(CLOSE)}"
    view = View(measured, predicted, (near, Line("equal", INK, ends, ends, dashed=True), *points), finding)
    return Chart("evidence", "Predicted against measured step time of published runs", (view,), square=True)


def _text(run: PublishedRun) -> str:
    return f"{run.id}: {run.model} on {run.gpus} {run.device}\nmeasured {format_time_s(run.measured_s)}"
