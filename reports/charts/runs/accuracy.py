"""Charts over all cases of a reconcile folder: scaling, accuracy and errors. Each is None without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import (
    COLOURS,
    Band,
    Boxes,
    Chart,
    ChartAxis,
    Line,
    Mark,
    Symbol,
    View,
    log_ticks,
    looks,
    whiskers,
)
from scaleproof.reports.charts.runs.breakdown import Bar
from scaleproof.reports.charts.style import BLUE, GREEN, GREY, INK, PURPLE, VERMILLION
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.verdict import CLOSE, FAIR
from scaleproof.reports.text import family_name, percent, rate, signed_percent, time_unit
from scaleproof.simulator.analysis.evidence import PublishedRun
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run

_LOOKS: Final[dict[str, tuple[str, Symbol]]] = {
    "data_parallel": (BLUE, "circle"),
    "parameter_server": (VERMILLION, "square"),
    "pipeline": (GREEN, "triangle-up"),
    "hybrid": (PURPLE, "diamond"),
}
_BIN: Final = 0.05
# errors are clipped to this share, so that one does not hide the others
_MOST_ERROR: Final = 1.0
_MOST_COUNTS: Final = 6
# factor by which the axes are longer than the range of published times
_EVIDENCE_MARGIN: Final = 1.35


def _look(family: str) -> tuple[str, Symbol]:
    """Colour and symbol of a family; grey crosses for unknown ones."""
    return _LOOKS.get(family, (GREY, "x"))


def bars(cases: Sequence[Case]) -> list[Bar]:
    """Bars of all cases, predicted above measured; runs of a log alone have no parts."""
    return [Bar(case.scenario, run.origin, run) for case in cases for run in case.runs if run.phase_s]


def scaling(cases: Sequence[Case]) -> Chart | None:
    """Samples/s against training ranks, of families that differ in their ranks only; None without any."""
    families = {family: members for family, members in _families(cases).items() if _differ_in_ranks(members)}
    families = {family: members for family, members in families.items() if len(members) > 1}
    if not families:
        return None
    marks: list[Mark] = []
    for family, members in families.items():
        marks += _scaling_marks(family, sorted(members, key=lambda case: case.compute_ranks))
    most = max(case.compute_ranks for members in families.values() for case in members)
    x = ChartAxis("training ranks", limits=(0.0, most * 1.08), ticks=_counts(families))
    view = View(x, ChartAxis("samples/s"), tuple(marks), _scaling_finding(families))
    caption = "Open marks: predicted, shaded: 90 % prediction interval. Filled marks: measured. Dashed: linear scaling."
    return Chart("scaling", "Throughput against training ranks", (view,), caption)


def _families(cases: Sequence[Case]) -> dict[str, list[Case]]:
    return {case.family: [c for c in cases if c.family == case.family and c.runs] for case in cases if case.runs}


def _counts(families: dict[str, list[Case]]) -> tuple[tuple[float, str], ...]:
    counts = sorted({case.compute_ranks for members in families.values() for case in members})
    return tuple((float(count), f"{count:,}") for count in counts)


def _scaling_marks(family: str, cases: Sequence[Case]) -> list[Mark]:
    colour, symbol = _look(family)
    name = family_name(family)
    predicted = [(case, case.predicted) for case in cases if case.predicted]
    measured = [(case, case.measured) for case in cases if case.measured]
    marks: list[Mark] = []
    known = [(run.compute_ranks, run.samples, run.prediction_interval_s) for _, run in predicted]
    rates = [(ranks, samples / ends[1], samples / ends[0]) for ranks, samples, ends in known if ends]
    if len(rates) > 1:
        ranks, low, high = (list(map(float, column)) for column in zip(*rates, strict=True))
        marks.append(Band(name, colour, ranks, low, high))
    for runs, hollow in ((predicted, True), (measured, False)):
        x, y = [float(run.compute_ranks) for _, run in runs], [run.samples_per_s for _, run in runs]
        texts = [_scaling_text(case, run) for case, run in runs]
        marks += [Line(name, colour, x, y, texts, symbol, joined=hollow, hollow=hollow)] if runs else []
    ideal = _ideal_rate([run for _, run in [*measured, *predicted]])
    if ideal:
        most = max(case.compute_ranks for case in cases) * 1.08
        marks.append(Line(name, colour, [0.0, most], [0.0, most * ideal], dashed=True))
    return marks


def _differ_in_ranks(cases: Sequence[Case]) -> bool:
    """Whether cases are one scenario on different numbers of ranks, judged by their runs: numbers of ranks must differ, and
    efficiencies must have the same baseline."""
    runs = [case.predicted for case in cases if case.predicted] or [case.measured for case in cases if case.measured]
    baselines = [run.baseline or {} for run in runs]
    kinds = [kind for kind in ("weak", "strong") if all(kind in baseline for baseline in baselines)]
    against_one = not kinds or any(len({baseline[kind] for baseline in baselines}) == 1 for kind in kinds)
    return against_one and len({run.compute_ranks for run in runs}) == len(runs)


def _scaling_text(case: Case, run: Run) -> str:
    efficiency = "".join(f"\n{kind} efficiency {percent(share)}" for kind, share in (run.efficiency or {}).items())
    return f"{case.scenario}, {run.origin}\n{run.compute_ranks:,} ranks: {rate(run.samples_per_s)} samples/s{efficiency}"


def _ideal_rate(runs: Sequence[Run]) -> float | None:
    """Samples/s per rank of the baseline, from the first run that has one."""
    for run in runs:
        for kind in ("weak", "strong"):
            if kind in (run.efficiency or {}):
                return run.samples_per_s_per_rank / (run.efficiency or {})[kind]
    return None


def _scaling_finding(families: dict[str, list[Case]]) -> str:
    """'From 2 to 4 ranks: data parallel 1.3×, pipeline 1.5×', by measured runs if there are any."""
    gains: dict[tuple[int, int], list[str]] = {}
    for family, members in families.items():
        runs = [case.measured for case in members if case.measured] or [case.predicted for case in members if case.predicted]
        first, last = (pick(runs, key=lambda run: run.compute_ranks) for pick in (min, max))
        if first.compute_ranks < last.compute_ranks:
            gain = f"{family_name(family)} {last.samples_per_s / first.samples_per_s:.2g}×"
            gains.setdefault((first.compute_ranks, last.compute_ranks), []).append(gain)
    gain_words = [f"from {first} to {last} ranks: {', '.join(words)}" for (first, last), words in gains.items()]
    words = "; ".join(gain_words)
    return f"{words[:1].upper()}{words[1:]}"


def accuracy(cases: Sequence[Case]) -> Chart | None:
    """Predicted against measured step time on logarithmic axes; None unless something was compared."""
    compared = [case for case in cases if case.error is not None]
    if not compared:
        return None
    times_s = np.array([[run.step_time_s for run in case.runs] for case in compared])
    unit, per_s = time_unit(float(times_s.max()))
    times = times_s * per_s
    intervals = [case.predicted.prediction_interval_s if case.predicted else None for case in compared]
    ends = [end_s * per_s for interval in intervals if interval for end_s in interval]
    lowest, highest = min(float(times.min()), *ends, math.inf) / 1.2, max(float(times.max()), *ends, 0.0) * 1.2
    marks: list[Mark] = [
        *(_within(share, colour, lowest, highest) for share, colour in ((FAIR, GREY), (CLOSE, BLUE))),
        Line("predicted = measured", INK, [lowest, highest], [lowest, highest], dashed=True),
    ]
    for family in dict.fromkeys(case.family for case in compared):
        members = [i for i, case in enumerate(compared) if case.family == family]
        texts = [_accuracy_text(compared[i]) for i in members]
        colour, symbol = _look(family)
        x, y = times[members, 1].tolist(), times[members, 0].tolist()
        known = [(place, interval) for place, interval in zip(x, (intervals[i] for i in members), strict=True) if interval]
        if known:
            marks.append(whiskers(family_name(family), colour, [(at, low * per_s, high * per_s) for at, (low, high) in known]))
        marks.append(Line(family_name(family), colour, x, y, texts, symbol, joined=False))
    ticks = log_ticks(lowest, highest)
    x_axis, y_axis = (
        ChartAxis(f"{side} step time, {unit}", True, ticks, (lowest, highest)) for side in ("measured", "predicted")
    )
    counted = [abs(case.error or 0) for case in compared if not case.disturbed]
    shares = ", ".join(f"{sum(error <= share for error in counted)} within ±{percent(share)}" for share in (CLOSE, FAIR))
    disturbed = f"{len(compared) - len(counted)} disturbed by other work" if len(counted) < len(compared) else ""
    finding = "; ".join(filter(None, (f"Of {len(counted)}, {shares}" if counted else "", disturbed)))
    caption = f"Above the line: predicted too slow.{' Bars: 90 % prediction interval.' if ends else ''}"
    view = View(x_axis, y_axis, tuple(marks), finding)
    return Chart("accuracy", "Predicted against measured step time", (view,), caption, height_px=460, square=True)


def _within(share: float, colour: str, lowest: float, highest: float) -> Band:
    """The band of errors up to a share."""
    ends = [lowest, highest]
    return Band(f"±{percent(share)}", colour, ends, [end * (1 - share) for end in ends], [end * (1 + share) for end in ends])


def _accuracy_text(case: Case) -> str:
    predicted, measured = (format_time_s(run.step_time_s) for run in case.runs)
    return f"{case.scenario}\npredicted {predicted}, measured {measured}\nerror {signed_percent(case.error)}"


def errors(cases: Sequence[Case]) -> Chart | None:
    """A histogram of errors; None unless there are several."""
    compared = [case for case in cases if case.error is not None]
    if len(compared) < 2:
        return None
    found: dict[int, list[Case]] = {}
    for case in compared:
        share = max(-_MOST_ERROR, min(case.error or 0.0, _MOST_ERROR - _BIN / 2))
        found.setdefault(int(share // _BIN), []).append(case)
    bins = sorted(found)
    texts = [
        f"{signed_percent(i * _BIN)} to {signed_percent((i + 1) * _BIN)}: {len(found[i])}\n"
        + "\n".join(f"{case.scenario} {signed_percent(case.error)}" for case in found[i][:8])
        for i in bins
    ]
    heights = [float(len(found[i])) for i in bins]
    left = [i * _BIN for i in bins]
    boxes = Boxes("scenarios", COLOURS[0], left, [_BIN] * len(bins), [height / 2 for height in heights], heights, texts)
    most = max(heights)
    reach = max(0.25, *(abs(end) + _BIN for end in left))
    zero = Line("no error", INK, [0.0, 0.0], [0.0, most * 1.08], dashed=True)
    x = ChartAxis("error: (predicted − measured) / measured", limits=(-reach, reach), percent=True)
    slow = sum((case.error or 0.0) > 0 for case in compared)
    finding = f"{slow} of {len(compared)} predicted too slow, {len(compared) - slow} too fast"
    every = -(-int(most) // _MOST_COUNTS)
    counts = tuple((float(count), str(count)) for count in range(0, int(most) + 1, every))
    view = View(x, ChartAxis("scenarios", ticks=counts, limits=(0.0, most * 1.08)), (boxes, zero), finding)
    caption = "Number of scenarios by error; right of zero the prediction was too slow."
    if any(abs(case.error or 0.0) > _MOST_ERROR for case in compared):
        caption += f" Errors beyond {percent(_MOST_ERROR)} are drawn at the end."
    return Chart("errors", "Errors by size", (view,), caption, height_px=260)


def evidence(runs: Sequence[PublishedRun]) -> Chart | None:
    """Predicted against measured milliseconds per step on logarithmic axes, by device; None without runs."""
    if not runs:
        return None
    times_ms = [time_s * 1e3 for run in runs for time_s in (run.measured_s, run.predicted_s)]
    ends = [min(times_ms) / _EVIDENCE_MARGIN, max(times_ms) * _EVIDENCE_MARGIN]
    near = Band(f"±{percent(CLOSE)}", GREY, ends, [end * (1 - CLOSE) for end in ends], [end * (1 + CLOSE) for end in ends])
    devices = list(dict.fromkeys(run.device for run in runs))
    points = []
    for device, (colour, symbol) in zip(devices, looks(len(devices)), strict=True):
        mine = [run for run in runs if run.device == device]
        x, y = [run.measured_s * 1e3 for run in mine], [run.predicted_s * 1e3 for run in mine]
        points.append(Line(device, colour, x, y, [_published_text(run) for run in mine], symbol, joined=False))
    measured, predicted = (
        ChartAxis(f"{side} ms per step", log=True, ticks=log_ticks(*ends), limits=(ends[0], ends[1]))
        for side in ("measured", "predicted")
    )
    close = sum(abs(run.error) <= CLOSE for run in runs)
    finding = f"{close} of {len(runs)} similar published runs are predicted within {percent(CLOSE)}"
    view = View(measured, predicted, (near, Line("equal", INK, ends, ends, dashed=True), *points), finding)
    return Chart("evidence", "Predicted against measured step time of published runs", (view,), square=True)


def _published_text(run: PublishedRun) -> str:
    return f"{run.id}: {run.model} on {run.gpus} {run.device}\nmeasured {format_time_s(run.measured_s)}"
