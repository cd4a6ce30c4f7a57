"""Streams of captured ranks against time: the host, kernels, and communication of each parallel dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, View
from scaleproof.reports.charts.runs.memory_curve import RANKS
from scaleproof.reports.text import percent, time_unit
from scaleproof.reports.timeline.boxes import TimelineBoxes, crowded, summed
from scaleproof.reports.timeline.step import NAMES
from scaleproof.reports.timeline.timeline import COLOURS
from scaleproof.simulator.common.spans import Phase, TimeIntervals
from scaleproof.simulator.common.units import counted, format_bytes, format_time_s
from scaleproof.simulator.strategy.captured.streams import ClassStreams, StreamSpan

_ROW_PX: Final = 46
_HEIGHT: Final = 0.7
# cells in the width of a chart, and narrow boxes that begin in a cell and are not merged
_CELLS: Final = 240
_MOST_IN_CELL: Final = 2
# least share of the step from which on a stream is in the finding
_LEAST: Final = 0.002


def stream_chart(name: str, heading: str, classes: Sequence[ClassStreams]) -> Chart:
    """What each stream does during a step, one view for each rank class."""
    names = tuple(one.of.name for one in classes)
    views = tuple(_view(one, (one.of.name,) if len(classes) > 1 else ()) for one in classes)
    rows = max(len(one.streams) for one in classes)
    caption = "Kernels between two waits are one box, and boxes too short to be drawn are merged."
    caption += " The host is shown where it launches what this step has; it often does so during the step before."
    choosers = ((RANKS, names),) if len(classes) > 1 else ()
    return Chart(name, heading, views, caption, choosers, height_px=round(110 + _ROW_PX * rows), along=True)


def _view(one: ClassStreams, choices: tuple[str, ...]) -> View:
    unit, per_s = time_unit(one.step_s)
    spans = one.spans
    track = [one.streams.index(span.stream) for span in spans]
    boxes = TimelineBoxes(
        np.array(track, np.int64), np.array([span.phase for span in spans], np.int64),
        np.zeros(len(spans), np.int64), np.array([1e3 * span.start_s for span in spans]),
        np.array([1e3 * span.end_s for span in spans]), np.ones(len(spans), np.int64),
    )  # fmt: skip
    cell_ms = 1e3 * one.step_s / _CELLS
    crowd = crowded(boxes, cell_ms, _MOST_IN_CELL)
    drawn: defaultdict[int, list[tuple[float, float, float, str]]] = defaultdict(list)
    for place in np.flatnonzero(~crowd).tolist():
        drawn[int(boxes.kind[place])].append(_box(boxes, place, per_s, _words(spans[place])))
    if crowd.any():
        merged = summed(boxes.where(crowd), cell_ms)
        for place in range(len(merged.track)):
            kind = int(merged.kind[place])
            phase, stream = NAMES.get(kind) or Phase(kind).label, one.streams[int(merged.track[place])]
            lasts = format_time_s(float(merged.end_ms[place] - merged.start_ms[place]) / 1e3)
            words = f"{stream}: {phase}, {int(merged.number[place])} times, together {lasts}"
            drawn[kind].append(_box(merged, place, per_s, words))
    marks = []
    for kind, colour in COLOURS.items():
        if int(kind) in drawn:
            left, width, middle, texts = zip(*drawn[int(kind)], strict=True)
            name = NAMES.get(kind) or Phase(kind).label
            marks.append(Boxes(name, colour, left, width, middle, [_HEIGHT] * len(left), texts))
    x = ChartAxis(f"{unit} since the step began", limits=(0.0, one.step_s * per_s * 1.01))
    y = ChartAxis("", ticks=tuple(enumerate(one.streams)), limits=(len(one.streams) - 0.4, -0.6))
    return View(x, y, tuple(marks), _finding(one), choices)


def _box(boxes: TimelineBoxes, place: int, per_s: float, words: str) -> tuple[float, float, float, str]:
    """Left edge, width, row and hover text of a box."""
    scale = per_s / 1e3
    start, end = float(boxes.start_ms[place]) * scale, float(boxes.end_ms[place]) * scale
    return start, end - start, float(boxes.track[place]), words


def _words(span: StreamSpan) -> str:
    """'kernels: forward, layers.0.attention to layers.1.norm, 42 kernels', and from when to when."""
    size = format_bytes(span.size_bytes) if span.size_bytes else ""
    phase = "" if span.size_bytes else NAMES.get(span.phase) or span.phase.label
    kernels = counted(span.kernels, "kernel") if span.kernels else ""
    words = ", ".join(filter(None, (phase, span.words, size, kernels)))
    times = f"{format_time_s(span.start_s)} to {format_time_s(span.end_s)}: {format_time_s(span.end_s - span.start_s)}"
    return f"{span.stream}: {words}\n{times}"


def _finding(one: ClassStreams) -> str:
    """'A step of 243 ms; busy: kernels 93 %, host 12 %, FSDP communication 20 % of it'."""
    owner = np.array([one.streams.index(span.stream) for span in one.spans], np.int64)
    start_s, end_s = (np.array([getattr(span, name) for span in one.spans]) for name in ("start_s", "end_s"))
    busy = TimeIntervals(owner, start_s, end_s).union()
    busy_s = np.bincount(busy.owner, busy.end_s - busy.start_s, minlength=len(one.streams))
    busy_shares = zip(one.streams, (busy_s / one.step_s).tolist(), strict=True)
    shares = [f"{stream} {percent(share)}" for stream, share in busy_shares if share >= _LEAST]
    return f"A step of {format_time_s(one.step_s)}; busy: {', '.join(shares)} of it"
