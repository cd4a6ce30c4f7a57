"""Ranks against time as an interactive chart, with stage and microbatch of each span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Mark, View
from scaleproof.reports.charts.style import FAINT
from scaleproof.reports.timeline.step import WEIGHT, Step, kind_words, span_words, typical_step
from scaleproof.reports.timeline.timeline import COLOURS, LONG_MS, rank_name
from scaleproof.simulator.common.units import format_time_s, format_times_s
from scaleproof.simulator.run.run import Phase, Run, Stream

# A rank's own work, and overlapped communication below it: offset of the middle, and height, in rows.
_MAIN: Final = (0.0, 0.62)
_OVERLAPPED: Final = (0.42, 0.2)
_ROW_PX: Final = 34
_WAITING: Final = "waiting for other ranks"
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, WEIGHT)


class _Span(NamedTuple):
    """A box with its hover text and label."""

    left_ms: float
    width_ms: float
    middle: float
    height: float
    text: str
    label: str = ""


def step_chart(name: str, heading: str, runs: Sequence[Run], most: int) -> Chart | None:
    """A typical steady step of each run, one below the other; None if no run has the spans of a step. most: maximum number of
    spans; of longer steps the first ranks are drawn."""
    steps = [step for step in map(typical_step, runs) if step is not None]
    if not steps:
        return None
    shown = [_first_ranks(step, most // len(steps)) for step in steps]
    found: dict[str, list[_Span]] = {}
    ticks: list[tuple[float, str]] = []
    row = 0.0
    for step, ranks in zip(steps, shown, strict=True):
        prefix = f"{step.run.origin}, " if len(steps) > 1 else ""
        for rank in ranks:
            ticks.append((row, f"{prefix}{rank_name(step.run, rank)}"))
            _add_rank(found, step, rank, row)
            row += 1
        row += 0.6
    longest_ms = max(step.length_ms for step in steps)
    # in seconds where a step is long
    unit, size_ms = ("s", 1e3) if longest_ms >= LONG_MS else ("ms", 1.0)
    marks: list[Mark] = []
    for kind, (colour, words) in _kinds(steps).items():
        if kind in found:
            left_ms, width_ms, middle, height, texts, labels = zip(*found[kind], strict=True)
            left, width = (tuple(ms / size_ms for ms in column) for column in (left_ms, width_ms))
            marks.append(Boxes(words, colour, left, width, middle, height, texts, labels if any(labels) else ()))
    x = ChartAxis(f"{unit} since the step began", limits=(0.0, longest_ms / size_ms * 1.01))
    y = ChartAxis("", ticks=tuple(ticks), limits=(row - 0.9, -0.6))
    view = View(x, y, tuple(marks), "; ".join(_title(step, ranks) for step, ranks in zip(steps, shown, strict=True)))
    return Chart(name, heading, (view,), height_px=round(110 + _ROW_PX * row), along=True)


def _kinds(steps: Sequence[Step]) -> dict[str, tuple[str, str]]:
    """Colour and name of each kind, in the order of a step."""
    named = {str(int(kind)): (colour, kind_words(int(kind), steps)) for kind, colour in COLOURS.items()}
    return named | {_WAITING: (FAINT, _WAITING)}


def _title(step: Step, ranks: Sequence[int]) -> str:
    first = f", first {len(ranks)} of {step.of} rows" if step.of > len(ranks) else ""
    return f"{step.run.origin}: {format_time_s(step.run.step_time_s)} a step{first}"


def _first_ranks(step: Step, most: int) -> list[int]:
    """The first ranks with at most `most` spans together, at least one."""
    counts = np.cumsum([int((step.spans.rank == rank).sum()) for rank in step.ranks])
    return step.ranks[: max(1, int((counts <= most).sum()))]


def _add_rank(found: dict[str, list[_Span]], step: Step, rank: int, row: float) -> None:
    spans = step.spans
    for i in np.flatnonzero((spans.rank == rank) & (step.end_ms > step.arrival_ms)).tolist():
        main = spans.stream[i] == Stream.MAIN
        kind = int(step.kind[i])
        below, height = _MAIN if main else _OVERLAPPED
        # waits for servers and for input are spans of their own, all wait
        begin_ms = float(step.arrival_ms[i] if main and kind in (Phase.WAIT, Phase.INPUT) else step.start_ms[i])
        place = row + below, height
        description = _description(step, i, kind)
        if main and begin_ms > step.arrival_ms[i]:
            arrived_ms = float(step.arrival_ms[i])
            words = f"{_WAITING}\nfor {format_time_s((begin_ms - arrived_ms) / 1e3)}, then {description}"
            found.setdefault(_WAITING, []).append(_Span(arrived_ms, begin_ms - arrived_ms, *place, words))
        if step.end_ms[i] > begin_ms:
            length_ms = float(step.end_ms[i]) - begin_ms
            times = f"{format_times_s(begin_ms / 1e3, float(step.end_ms[i]) / 1e3)}: {format_time_s(length_ms / 1e3)}"
            words = f"{rank_name(step.run, rank)}: {description}\n{times}"
            numbered = main and kind in _PASSES and step.spans.microbatch.max(initial=0) > 0
            label = str(step.spans.microbatch[i]) if numbered and step.spans.microbatch[i] >= 0 else ""
            found.setdefault(str(kind), []).append(_Span(begin_ms, length_ms, *place, words, label))


def _description(step: Step, i: int, kind: int) -> str:
    """'backward, stage 1, microbatch 3'."""
    spans = step.spans
    words = [span_words(spans, i, kind)]
    words += [f"stage {spans.stage[i]}"] if spans.stage[i] >= 0 else []
    words += [f"microbatch {spans.microbatch[i]}"] if spans.microbatch[i] >= 0 else []
    words += ["overlapped with the rank's own work"] if spans.stream[i] != Stream.MAIN else []
    return ", ".join(words)
