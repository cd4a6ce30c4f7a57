"""A typical predicted step above a typical measured one, with the largest differences marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from scaleproof.reports.charts.style import INK, Drawn, render_both
from scaleproof.reports.read.results import Case
from scaleproof.reports.text import milliseconds
from scaleproof.reports.timeline.step import Step, typical_step
from scaleproof.reports.timeline.timeline import draw, height, rank_name, shown
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.explanation import Divergence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_IN: Final = 0.17
# half of the height of a row's main track, and a little more
_HALF_ROW: Final = 0.34
# of the step: what lies between spans that follow one another
_TOUCHING: Final = 1e-4
# share of the axis between a number and the place it marks
_ROOM: Final = 0.012


def side_by_side(case: Case) -> Drawn | None:
    """A typical steady step of both sides, or of one side; None if neither has the spans of a step."""
    found = [typical_step(run) for run in case.runs]
    steps = [step for step in found if step is not None]
    if not steps:
        return None
    titles = [f"{step.run.origin}: {format_time_s(step.run.step_time_s)} per step ({shown(step)})" for step in steps]
    marks = case.explanation.partings if case.explanation is not None and len(steps) == 2 else ()
    places = [(mark, _places(steps, mark)) for mark in marks]
    marked = [(mark, place) for mark, place in places if place is not None]

    def fill(figure: Figure) -> None:
        panels = draw(figure, steps, titles)
        _mark(figure, panels, steps, marked)

    return render_both(height(steps) + _LINE_IN * len(marked), fill)


def _mark(
    figure: Figure,
    panels: Sequence[Axes],
    steps: Sequence[Step],
    marked: Sequence[tuple[Divergence, tuple[_Place, _Place]]],
) -> None:
    """Draws numbered frames around differences, lines between the panels, and descriptions below."""
    from matplotlib.patches import ConnectionPatch

    for number, (_, places) in enumerate(marked, start=1):
        for panel, place in zip(panels, places, strict=True):
            _frame(panel, place, number)
        above, below = places
        line: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2)), "alpha": 0.5}
        tips: dict[str, Any] = {"xyA": (above.end_ms, above.row + _HALF_ROW), "xyB": (below.end_ms, below.row - _HALF_ROW)}
        figure.add_artist(ConnectionPatch(**tips, coordsA="data", coordsB="data", axesA=panels[0], axesB=panels[1], **line))
    if marked:
        texts = [f"{number}  {_words(steps, mark)}" for number, (mark, _) in enumerate(marked, start=1)]
        panels[-1].set_xlabel("\n".join([panels[-1].get_xlabel(), *texts]))


def _frame(panel: Axes, place: _Place, number: int) -> None:
    from matplotlib.patches import Rectangle

    frame: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.3, "zorder": 4}
    corner = place.begin_ms, place.row - _HALF_ROW
    panel.add_patch(Rectangle(corner, place.end_ms - place.begin_ms, 2 * _HALF_ROW, **frame))
    badge: dict[str, Any] = {"boxstyle": "circle,pad=0.18", "facecolor": INK, "edgecolor": "white", "linewidth": 0.8}
    look: dict[str, Any] = {"color": "white", "fontsize": 6.5, "fontweight": "bold", "zorder": 6, "bbox": badge}
    at_ms = max(place.begin_ms, _ROOM * panel.get_xlim()[1])
    panel.text(at_ms, corner[1], str(number), ha="center", va="center", **look)


class _Place(NamedTuple):
    """A stretch of a row of a panel."""

    row: int
    begin_ms: float
    end_ms: float

    @property
    def length_ms(self) -> float:
        return self.end_ms - self.begin_ms


def _places(steps: Sequence[Step], mark: Divergence) -> tuple[_Place, _Place] | None:
    """The places of a difference on both sides: the stretches that differ most; None if a side lacks it."""
    above, below = (_stretches(step, mark) for step in steps)
    if not above or not below:
        return None
    if len(above) == len(below):
        return max(zip(above, below, strict=True), key=lambda pair: abs(pair[0].length_ms - pair[1].length_ms))
    longest_above, longest_below = (max(some, key=lambda place: place.length_ms) for some in (above, below))
    return longest_above, longest_below


def _stretches(step: Step, mark: Divergence) -> list[_Place]:
    """TimeIntervals of consecutive spans, in order, of the first rank that has them."""
    phases = [phase for phase in Phase if phase.label == mark.phase]
    own = (step.spans.stream == Stream.MAIN) & np.isin(step.spans.phase, phases) & (step.end_ms > step.arrival_ms)
    for wanted, column in ((mark.stage, step.spans.stage), (mark.microbatch, step.spans.microbatch)):
        own &= (column == wanted) | (wanted < 0)
    for rank in (mark.rank,) if step.run.origin == "predicted" else mark.measured_ranks:
        rows = np.flatnonzero(own & (step.spans.rank == rank))
        if rank not in step.ranks or not len(rows):
            continue
        rows = rows[np.argsort(step.arrival_ms[rows])]
        begin_ms, end_ms = step.arrival_ms[rows], step.end_ms[rows]
        first = np.append(True, begin_ms[1:] > end_ms[:-1] + _TOUCHING * step.length_ms)
        last = np.append(first[1:], True)
        return [
            _Place(step.ranks.index(rank), *ends) for ends in zip(begin_ms[first].tolist(), end_ms[last].tolist(), strict=True)
        ]
    return []


def _words(steps: Sequence[Step], mark: Divergence) -> str:
    """'receive on stage 3, microbatch 0: 44.6 ms predicted, 119 ms measured, the mean of all steps'."""
    microbatch = f", microbatch {mark.microbatch}" if mark.microbatch >= 0 else ""
    sides = f"{milliseconds(mark.predicted_s)} ms predicted, {milliseconds(mark.measured_s)} ms measured"
    return f"{mark.phase} on {rank_name(steps[0].run, mark.rank)}{microbatch}: {sides}, the mean of all steps"
