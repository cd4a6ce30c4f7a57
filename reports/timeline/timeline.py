"""Timelines: ranks against time, the steps of one run or of several on the same scale."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.reports.charts import style
from scaleproof.reports.charts.style import WIDTH_IN, Format, figure_of, label, paler, render, title
from scaleproof.reports.text import cause_words, percent
from scaleproof.reports.timeline.boxes import TimelineBoxes, merged
from scaleproof.reports.timeline.step import WEIGHT, Step, kind_words, typical_step
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.parallelism.strategy import Strategy
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# a kind in addition to those of a step: a wait for other ranks
WAITING: Final = -1
_WAITING_COLOUR: Final = style.PHASE_COLOURS["waiting for other ranks"]
COLOURS: Final[dict[int, str]] = {
    Phase.FORWARD: style.PHASE_COLOURS["forward"],
    Phase.BACKWARD: style.PHASE_COLOURS["backward"],
    WEIGHT: style.PHASE_COLOURS["gradients of weights"],
    **{phase: style.PHASE_COLOURS[phase.label] for phase in Phase if phase > Phase.BACKWARD},
}
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, WEIGHT)
# how much paler the last of a rank's stages is than its first
_PALEST: Final = 0.6
# Tracks of a row as (offset below the middle, height): the rank's own work, and overlapped communication below it; a rank
# sends and receives at the same time.
_PARTS: Final = ((0.0, 0.6), (0.41, 0.2), (0.36, 0.1), (0.46, 0.1))
TRACKS: Final = len(_PARTS)
_OVERLAPPED: Final = np.array([{Phase.SEND: 2, Phase.RECEIVE: 3}.get(kind, 1) for kind in (*Phase, WEIGHT)])
_ROW_IN: Final = 0.34
_AXIS_IN: Final = WIDTH_IN - 1.2
# boxes narrower than this have no edge, which would hide them; those that crowd in a cell of this width are merged
_EDGED_IN: Final = 0.02
_CELL_IN: Final = 0.06
# of a microbatch's number and its stage's: points, and inches of a digit
_FONTS: Final = ((7.0, 0.062), (5.0, 0.044))
_MARGIN_IN: Final = 0.02
# in a line of the legend
_LEGEND_LETTERS: Final = 80
# from here on the axis is in seconds
LONG_MS: Final = 1e3
# in a line of the title
_TITLE_LETTERS: Final = 84
# minimum share of a step from which a part is in the title
_MIN_SHARE: Final = 0.005


def picture(scenario: Scenario, form: Format) -> bytes:
    """A typical steady step of a scenario's prediction as SVG or PNG, with a summary of the step as its description."""
    step = typical_step(predict(scenario))
    assert step is not None, "forecasts have spans"
    height_in = height([step])
    description = json.dumps(step.facts(), separators=(",", ":"))
    return render(height_in, lambda figure: draw(figure, [step], [_finding(step, scenario.strategy)]), form, description)


def run_figure(run: Run) -> Figure | None:
    """A typical steady step of a run as a matplotlib figure; None if the run has no spans of a step."""
    step = typical_step(run)
    if step is None:
        return None
    return figure_of(height([step]), lambda figure: draw(figure, [step], [_finding(step, None)]))


def height(steps: Sequence[Step]) -> float:
    """Height of a picture of steps, in inches."""
    return sum(0.87 + _ROW_IN * max(2, len(step.ranks)) for step in steps) + 0.3


def shown(step: Step) -> str:
    """'step 3 shown', and the rows shown."""
    return f"step {step.number} shown{step.rows_words}" if step.number else f"some steps shown{step.rows_words}"


def _finding(step: Step, strategy: Strategy | None) -> str:
    """'pipeline, 1f1b, on 4 ranks: 37.6 ms a step', and below it the shares other than computing."""
    run = step.run
    schedule = f", {strategy.plan.schedule}," if isinstance(strategy, ReplicaStrategy) and strategy.stages > 1 else ""
    ranks = f"{run.ranks:,} rank{'s' if run.ranks > 1 else ''}"
    shares = {name: run.breakdown_s.get(name, 0.0) / run.step_time_s for name in BREAKDOWN if name != "compute"}
    parts = [f"{cause_words(name)} {percent(share)}" for name, share in shares.items() if share >= _MIN_SHARE]
    first = f"{run.strategy}{schedule} on {ranks}: {format_time_s(run.step_time_s)} a step{step.rows_words}"
    first += f"; {run.framework_words}" if run.framework else ""
    return "\n".join(textwrap.fill(line, _TITLE_LETTERS) for line in (first, ", ".join(parts))).strip()


def draw(figure: Figure, steps: Sequence[Step], titles: Sequence[str]) -> list[Axes]:
    """A panel for each step, one above the other; a rank's row is at its place among the step's ranks."""
    longest_ms = max(step.length_ms for step in steps) or 1.0
    panels = figure.subplots(
        len(steps), 1, sharex=True, squeeze=False, height_ratios=[len(step.ranks) + 0.6 for step in steps]
    ).ravel()
    most = 1
    for panel, step, words in zip(panels, steps, titles, strict=True):
        most = max(most, _draw_step(panel, step, longest_ms))
        title(panel, words)
    panels[0].set_xlim(0, longest_ms * 1.01)
    panels[-1].set_xlabel(f"{'ms' if longest_ms < LONG_MS else 's'}{_key(panels, steps, most)}")
    if longest_ms >= LONG_MS:
        panels[-1].xaxis.set_major_formatter(lambda ms, _: f"{ms / 1e3:g}")
    handles = _legend(steps)
    lines = max(1, -(-sum(len(str(handle.get_label())) for handle in handles) // _LEGEND_LETTERS))
    spacing: dict[str, Any] = {"handlelength": 1.4, "columnspacing": 1.3, "handletextpad": 0.5}
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // lines), **spacing)
    return list(panels)


def _key(panels: Iterable[Axes], steps: Sequence[Step], most: int) -> str:
    """Text next to the unit of the axis: its origin, and the meaning of boxes and their numbers.

    most: largest number of spans that a box represents.
    """
    begin = " since the step began" if all(step.number for step in steps) else ""
    below = ", below it the stage" if max(step.chunks for step in steps) > 1 else ""
    notes = [f"in boxes: microbatch{below}"] if any(panel.texts for panel in panels) else []
    notes += [f"where crowded, up to {most:,} of a kind are one box"] if most > 1 else []
    return f"{begin} ({'; '.join(notes)})" if notes else begin


def _draw_step(panel: Axes, step: Step, longest_ms: float) -> int:
    """Draws a step. Returns the largest number of spans that a box represents."""
    boxes = merged(step_boxes(step), longest_ms * _CELL_IN / _AXIS_IN)
    edged = (boxes.end_ms - boxes.start_ms >= longest_ms * _EDGED_IN / _AXIS_IN) & (boxes.number == 1)
    edged &= (boxes.track % TRACKS == 0) & (boxes.kind != WAITING)
    places = np.stack([boxes.track, boxes.kind, boxes.chunk, edged])
    for place in np.unique(places, axis=1).T:
        track, kind, chunk, has_edge = map(int, place)
        row, height = place_of(track)
        mine = (places == place[:, None]).all(axis=0)
        share = _PALEST * chunk / (step.chunks - 1) if chunk and kind in _PASSES else 0.0
        look: dict[str, Any] = {"facecolor": _WAITING_COLOUR if kind == WAITING else paler(COLOURS[kind], share)}
        # what is narrower than a pixel is not made as wide as one
        look |= {"edgecolor": "white", "linewidth": 0.4} if has_edge else {"linewidth": 0, "snap": False}
        bars = zip(boxes.start_ms[mine].tolist(), (boxes.end_ms - boxes.start_ms)[mine].tolist(), strict=True)
        panel.broken_barh(list(bars), (row - height / 2, height), **look)
    _number(panel, step, np.searchsorted(step.ranks, step.spans.rank).astype(float), longest_ms)
    panel.set_yticks(range(len(step.ranks)), [rank_name(step.run, rank) for rank in step.ranks])
    panel.set_ylim(len(step.ranks) - 0.4, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.grid(False, axis="y")
    return int(boxes.number.max(initial=1))


def step_boxes(step: Step) -> TimelineBoxes:
    """Boxes of all waits for other ranks, and then of all spans. A row has a track for the rank's own work, and tracks for
    overlapped communication."""
    main, first_wait = step.spans.stream == Stream.MAIN, waits(step)
    track = TRACKS * np.searchsorted(step.ranks, step.spans.rank) + np.where(main, 0, _OVERLAPPED[step.kind])
    # waits for servers and for input have colours of their own, from arrival on
    start_ms = np.where(first_wait | ~main, step.start_ms, step.arrival_ms)
    number = np.ones(len(track), dtype=np.int64)
    spans = TimelineBoxes(track, step.kind, np.where(main, step.chunk, 0), start_ms, step.end_ms, number)
    waiting = TimelineBoxes(track, np.full(len(track), WAITING), np.zeros_like(track), step.arrival_ms, start_ms, number).where(
        first_wait
    )
    return waiting.and_(spans)


def place_of(track: int) -> tuple[float, float]:
    """The middle of a track and its height, both in rows."""
    row, part = divmod(track, TRACKS)
    below, height = _PARTS[part]
    return row + below, height


def _number(panel: Axes, step: Step, rows: NDArray[np.float64], longest_ms: float) -> None:
    """Writes the microbatch into passes that are wide enough for it, and below it the stage where ranks have several."""
    if step.spans.microbatch.max(initial=0) < 1:
        return
    width_in = (step.end_ms - step.start_ms) * _AXIS_IN / longest_ms
    numbered = (step.spans.microbatch >= 0) & np.isin(step.kind, _PASSES)
    for index in np.flatnonzero(numbered):
        lines = [(str(step.spans.microbatch[index]), *_FONTS[0])]
        if step.chunks > 1:
            lines.append((str(step.spans.stage[index]), *_FONTS[1]))
        if width_in[index] < _MARGIN_IN + max(digit_in * len(text) for text, _, digit_in in lines):
            continue
        centre_ms = (step.start_ms[index] + step.end_ms[index]) / 2
        dark = step.kind[index] == WEIGHT and step.chunk[index] == 0
        offsets = (0.0,) if len(lines) == 1 else (-0.11, 0.17)
        for (text, size, _), offset in zip(lines, offsets, strict=True):
            look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": "white" if dark else "black"}
            panel.text(centre_ms, rows[index] + offset, text, fontsize=size, **look)


def rank_name(run: Run, rank: int) -> str:
    """The name of a rank of a run's spans."""
    return label(run.rank_names[rank], 26) if rank < len(run.rank_names) else f"rank {rank}"


def _legend(steps: Sequence[Step]) -> list[Patch]:
    """Patches for the kinds that are there, in the order of a step."""
    from matplotlib.patches import Patch

    present = {int(kind) for step in steps for kind in np.unique(step.kind[step.end_ms > step.arrival_ms])}
    patches = [Patch(color=colour, label=kind_words(int(kind), steps)) for kind, colour in COLOURS.items() if kind in present]
    if any(waits(step).any() for step in steps):
        patches.append(Patch(color=_WAITING_COLOUR, label="waiting for other ranks"))
    return patches


def waits(step: Step) -> NDArray[np.bool_]:
    """Which spans begin with a wait for another rank. Waits for servers and for input are separate spans."""
    separate = np.isin(step.spans.phase, (Phase.WAIT, Phase.INPUT))
    found: NDArray[np.bool_] = (step.spans.stream == Stream.MAIN) & (step.start_ms > step.arrival_ms) & ~separate
    return found
