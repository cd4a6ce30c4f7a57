"""Ranks against time as an interactive chart, with stage and microbatch of each span. Spans that crowd are merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Mark, View
from scaleproof.reports.charts.style import FAINT
from scaleproof.reports.text import time_unit
from scaleproof.reports.timeline.boxes import TimelineBoxes, crowded, summed
from scaleproof.reports.timeline.step import NAMES, WEIGHT, Step, kind_words, span_words, typical_step
from scaleproof.reports.timeline.timeline import COLOURS, TRACKS, WAITING, place_of, rank_name, step_boxes, waits
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run

_ROW_PX: Final = 34
_WAITING_WORDS: Final = "waiting for other ranks"
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, WEIGHT)
# cells in the width of a chart, and narrow boxes that begin in a cell and are not merged
_CELLS: Final = 240
_MOST_IN_CELL: Final = 2


class _Box(NamedTuple):
    """A box in ms and rows, with its hover text and label."""

    left_ms: float
    width_ms: float
    middle: float
    height: float
    text: str
    label: str = ""


def step_chart(name: str, heading: str, runs: Sequence[Run], most: int) -> Chart | None:
    """A typical steady step of each run, one below the other; None if no run has the spans of a step. most: maximum number of
    boxes; of longer steps fewer ranks are drawn."""
    steps = [step for step in map(typical_step, runs) if step is not None]
    if not steps:
        return None
    longest_ms = max(step.length_ms for step in steps)
    unit, per_s = time_unit(longest_ms / 1e3)
    found: dict[int, list[_Box]] = {}
    ticks: list[tuple[float, str]] = []
    titles = []
    row = 0.0
    for step in steps:
        prefix = f"{step.run.origin}, " if len(steps) > 1 else ""
        rows = _rows(step, longest_ms / _CELLS, most // len(steps))
        if len(rows) < len(step.ranks):
            step = typical_step(step.run, len(rows)) or step
            rows = _rows(step, longest_ms / _CELLS, most)
        for rank, boxes in zip(step.ranks, rows, strict=False):
            ticks.append((row, f"{prefix}{rank_name(step.run, rank)}"))
            for kind, box in boxes:
                found.setdefault(kind, []).append(box._replace(middle=row + box.middle))
            row += 1
        row += 0.6
        titles.append(f"{step.run.origin}: {format_time_s(step.run.step_time_s)} a step{step.rows_words}")
    marks: list[Mark] = []
    for kind, (colour, words) in _kinds(steps).items():
        if kind in found:
            left_ms, width_ms, middle, height, texts, labels = zip(*found[kind], strict=True)
            left, width = ([ms * per_s / 1e3 for ms in column] for column in (left_ms, width_ms))
            marks.append(Boxes(words, colour, left, width, middle, height, texts, labels if any(labels) else ()))
    x = ChartAxis(f"{unit} since the step began", limits=(0.0, longest_ms * per_s / 1e3 * 1.01))
    y = ChartAxis("", ticks=tuple(ticks), limits=(row - 0.9, -0.6))
    return Chart(
        name, heading, (View(x, y, tuple(marks), "; ".join(titles)),), height_px=round(110 + _ROW_PX * row), along=True
    )


def _kinds(steps: Sequence[Step]) -> dict[int, tuple[str, str]]:
    """Colour and name of each kind, in the order of a step."""
    named = {int(kind): (colour, kind_words(int(kind), steps)) for kind, colour in COLOURS.items()}
    return named | {WAITING: (FAINT, _WAITING_WORDS)}


def _rows(step: Step, cell_ms: float, most: int) -> list[list[tuple[int, _Box]]]:
    """Kinds and boxes of the first ranks, which have at most `most` boxes together; at least those of one rank."""
    boxes = step_boxes(step)
    spans = np.concatenate([np.flatnonzero(waits(step)), np.arange(len(step.spans))])
    crowd = crowded(boxes, cell_ms, _MOST_IN_CELL)
    alone, together = boxes.where(~crowd), summed(boxes.where(crowd), cell_ms)
    result: list[list[tuple[int, _Box]]] = []
    total = 0
    for row, rank in enumerate(step.ranks):
        mine, few = (
            np.flatnonzero((some.track // TRACKS == row) & (some.end_ms > some.start_ms)) for some in (alone, together)
        )
        total += len(mine) + len(few)
        if result and total > most:
            break
        name = rank_name(step.run, rank)
        drawn = [_single(step, alone, i, int(spans[~crowd][i]), name) for i in mine.tolist()]
        result.append(drawn + [_several(together, i, name) for i in few.tolist()])
    return result


def _single(step: Step, boxes: TimelineBoxes, i: int, span: int, name: str) -> tuple[int, _Box]:
    """Kind and box of one span, or of the wait before it."""
    kind, begin_ms, end_ms = int(boxes.kind[i]), float(boxes.start_ms[i]), float(boxes.end_ms[i])
    lasts = f"{format_time_s(begin_ms / 1e3)} to {format_time_s(end_ms / 1e3)}: {format_time_s((end_ms - begin_ms) / 1e3)}"
    words = _description(step, span, int(step.kind[span]))
    if kind == WAITING:
        words = f"{_WAITING_WORDS}, then {words}"
    middle, height = place_of(int(boxes.track[i]) % TRACKS)
    microbatch = int(step.spans.microbatch[span])
    numbered = kind in _PASSES and step.spans.stream[span] == Stream.MAIN and step.spans.microbatch.max(initial=0) > 0
    label = str(microbatch) if numbered and microbatch >= 0 else ""
    return kind, _Box(begin_ms, end_ms - begin_ms, middle, height, f"{name}: {words}\n{lasts}", label)


def _several(boxes: TimelineBoxes, i: int, name: str) -> tuple[int, _Box]:
    """Kind and box of several short spans of one kind."""
    kind, begin_ms, end_ms = int(boxes.kind[i]), float(boxes.start_ms[i]), float(boxes.end_ms[i])
    words = _WAITING_WORDS if kind == WAITING else NAMES.get(kind) or Phase(kind).label
    text = f"{name}: {words}, {int(boxes.number[i])} times, together {format_time_s((end_ms - begin_ms) / 1e3)}"
    return kind, _Box(begin_ms, end_ms - begin_ms, *place_of(int(boxes.track[i]) % TRACKS), text)


def _description(step: Step, i: int, kind: int) -> str:
    """'backward, stage 1, microbatch 3'."""
    spans = step.spans
    words = [span_words(spans, i, kind)]
    words += [f"stage {spans.stage[i]}"] if spans.stage[i] >= 0 else []
    words += [f"microbatch {spans.microbatch[i]}"] if spans.microbatch[i] >= 0 else []
    words += ["overlapped"] if spans.stream[i] != Stream.MAIN else []
    return ", ".join(words)
