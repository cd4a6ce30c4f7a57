"""Live bytes of a captured rank over a step, by what they hold, with the peak marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import INK, MEMORY_COLOURS
from scaleproof.reports.text import percent, spaced, time_unit
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.memory.captured import LiveMemory
from scaleproof.simulator.strategy.captured.streams import ClassStreams

RANKS: Final = "ranks"
# Times at which the curve is drawn, and the share of the capacity from which on that is drawn too.
_CELLS: Final = 300
_NEAR: Final = 0.4
_GIB: Final = 2.0**30
_PLACES: Final = {"start": "before the step", "optimizer": "in the optimizer's step"}


class RankCurve(NamedTuple):
    """A rank class, when its step is where, and its live bytes."""

    streams: ClassStreams
    live: LiveMemory


def memory_curve(name: str, heading: str, curves: Sequence[RankCurve], capacity_bytes: float) -> Chart:
    """GiB of live tensors over a step, one view for each rank class."""
    names = tuple(one.streams.of.name for one in curves)
    views = tuple(_view(one, capacity_bytes, (one.streams.of.name,) if len(curves) > 1 else ()) for one in curves)
    caption = (
        "Bytes of live tensors when the stream of kernels gets there; of times too close to be drawn, the one with most. "
        "What the allocator keeps in addition, and libraries, are in the figure of memory against capacity."
    )
    return Chart(name, heading, views, caption, ((RANKS, names),) if len(curves) > 1 else (), height_px=420, along=True)


def _view(one: RankCurve, capacity_bytes: float, choices: tuple[str, ...]) -> View:
    live = one.live
    reached_s = one.streams.reached_s[np.minimum(live.at, len(one.streams.reached_s) - 1)]
    total = live.live_bytes.sum(axis=0)
    drawn = _drawn(reached_s, total)
    unit, per_s = time_unit(float(one.streams.reached_s[-1]))
    # what is live stays so until the next change
    x = np.append(np.repeat(reached_s[drawn], 2)[1:], one.streams.step_s) * per_s
    marks: list[Mark] = []
    drawn = np.repeat(drawn, 2)
    texts = [f"{format_time_s(float(reached_s[place]))}: {format_bytes(float(total[place]))}" for place in drawn]
    below = np.zeros(len(drawn))
    for holder in (each for each in MEMORY_COLOURS if each in live.holders):
        own = live.live_bytes[live.holders.index(holder), drawn] / _GIB
        if not own.any():
            continue
        marks.append(
            Band(spaced(holder), MEMORY_COLOURS[holder], x.tolist(), below.tolist(), (below + own).tolist(), solid=True)
        )
        texts = [
            f"{text}\n{spaced(holder)} {format_bytes(float(size * _GIB))}" if size else text
            for text, size in zip(texts, own, strict=True)
        ]
        below = below + own
    marks.append(Line("all", INK, x.tolist(), below.tolist(), texts))
    peak_s, peak_GiB = float(reached_s[live.peak_place]), live.peak.size_bytes / _GIB
    finding = peak_words(one, capacity_bytes)
    marks.append(Line("peak", INK, [peak_s * per_s], [peak_GiB], [finding], symbol="diamond", joined=False))
    if live.peak.size_bytes > _NEAR * capacity_bytes:
        ends = [0.0, float(x[-1])]
        words = [f"capacity: {format_bytes(capacity_bytes)}"] * 2
        marks.append(Line("capacity", INK, ends, [capacity_bytes / _GIB] * 2, words, dashed=True))
    highest_GiB = max(max(mark.y) for mark in marks if isinstance(mark, Line))
    y = ChartAxis("live tensors, GiB", limits=(0.0, 1.06 * highest_GiB or 1.0))
    return View(ChartAxis(f"{unit} since the step began", limits=(0.0, float(x[-1]) or 1.0)), y, tuple(marks), finding, choices)


def peak_words(one: RankCurve, capacity_bytes: float) -> str:
    """'Peak: 9.23 GiB, 12 % of the device, in the backward pass of output at t.py:12; 4.89 GiB of it are from t.py:11'."""
    peak = one.live.peak
    words = f"Peak: {format_bytes(peak.size_bytes)}, {percent(peak.size_bytes / capacity_bytes)} of the device"
    if peak.last is not None:
        phase = peak.last.phase
        words += f", {_PLACES.get(phase, f'in the {phase} pass')}{f' of {peak.last.module}' if peak.last.module else ''}"
        words += f" at {peak.last.line}" if peak.last.line else ""
    line, size = next(((line, size) for line, size in peak.lines_bytes.items() if line), ("", 0))
    return f"{words}; {format_bytes(size)} of it are from {line}" if line else words


def _drawn(reached_s: NDArray[np.float64], total: NDArray[np.int64]) -> NDArray[np.intp]:
    """The places that are drawn: of each of many intervals the one with most bytes, and both ends."""
    cell = np.floor(reached_s / (reached_s[-1] or 1.0) * _CELLS)
    # within each cell, the largest comes last
    order = np.lexsort((total, cell))
    last = order[np.flatnonzero(np.diff(cell[order], append=np.inf))]
    return np.unique([0, *last.tolist(), len(total) - 1])
