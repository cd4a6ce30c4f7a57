"""One step as a timeline: ranks against time, measured above predicted on the same scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reports.results import Case
from reports.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, WIDTH_IN, YELLOW, label, render, title
from reports.text import milliseconds
from simulator.run import Phase, Run, Spans, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_MOST_RANKS: Final = 16
_WAITING_COLOUR: Final = "#E3E5E9"
_PHASE_COLOURS: Final = {
    Phase.FORWARD: SKY,
    Phase.BACKWARD: BLUE,
    Phase.OPTIMIZER: GREEN,
    Phase.SYNCHRONISE: ORANGE,
    Phase.SEND: VERMILLION,
    Phase.RECEIVE: PURPLE,
    Phase.WAIT: YELLOW,
    Phase.INPUT: GREY,
}
_DARK: Final = {Phase.BACKWARD, Phase.OPTIMIZER, Phase.SEND}
_PHASE_NAMES: Final = {Phase.WAIT: "waiting for server or workers", Phase.INPUT: "waiting for input"}
_DIGIT_IN: Final = 0.062  # of a microbatch number at its size of 7 points


class _Step(NamedTuple):
    """One steady step of a run: the spans of its first ranks, with times from the step's begin; `of` is how many there are."""

    run: Run
    number: int
    spans: Spans
    arrival_ms: NDArray[np.float64]
    start_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    ranks: list[int]
    of: int

    @property
    def length_ms(self) -> float:
        return float(self.end_ms.max())


def timeline(case: Case) -> bytes | None:
    """A typical steady step of both sides as PNG bytes; None when neither has spans of one."""
    found = (_typical_step(run) for run in (case.measured, case.predicted) if run is not None)
    steps = [step for step in found if step is not None]
    if not steps:
        return None
    height_in = sum(0.72 + 0.27 * len(step.ranks) for step in steps) + 0.5
    return render(height_in, lambda figure: _draw(figure, steps))


def _typical_step(run: Run) -> _Step | None:
    """The steady step whose time is closest to the run's step time."""
    if run.spans is None:
        return None
    numbers = np.unique(run.spans.step[run.spans.step >= 1])
    if not len(numbers):
        return None
    times_s = dict(enumerate(run.step_times_s, start=1))
    number = min(map(int, numbers), key=lambda n: abs(times_s.get(n, np.inf) - run.step_time_s))
    spans = run.spans.where(run.spans.step == number)
    ranks = np.unique(spans.rank)
    spans = spans.where(np.isin(spans.rank, ranks[:_MOST_RANKS]))
    zero_s = spans.arrival_s.min()
    arrival_ms, start_ms, end_ms = ((times_s - zero_s) * 1e3 for times_s in (spans.arrival_s, spans.start_s, spans.end_s))
    return _Step(run, number, spans, arrival_ms, start_ms, end_ms, list(map(int, ranks[:_MOST_RANKS])), len(ranks))


def _draw(figure: Figure, steps: Sequence[_Step]) -> None:
    longest_ms = max(step.length_ms for step in steps) or 1.0
    panels = figure.subplots(
        len(steps), 1, sharex=True, squeeze=False, height_ratios=[len(step.ranks) + 0.6 for step in steps]
    ).ravel()
    for panel, step in zip(panels, steps, strict=True):
        _draw_step(panel, step, longest_ms)
    panels[0].set_xlim(0, longest_ms * 1.01)
    panels[-1].set_xlabel("ms since the step began")
    handles = _legend(steps)
    columns = len(handles) if len(handles) <= 5 else -(-len(handles) // 2)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _draw_step(panel: Axes, step: _Step, longest_ms: float) -> None:
    main = step.spans.stream == Stream.MAIN
    rows = np.searchsorted(step.ranks, step.spans.rank).astype(float)
    served = step.spans.phase == Phase.WAIT
    # waits between workers and servers have a colour of their own, from arrival on; other waits are pale
    start_ms = np.where(served, step.arrival_ms, step.start_ms)
    _bars(panel, rows, step.arrival_ms, start_ms, main & (start_ms > step.arrival_ms), 0.62, color=_WAITING_COLOUR, linewidth=0)
    for phase, colour in _PHASE_COLOURS.items():
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.4}
        mine = step.spans.phase == phase
        _bars(panel, rows, start_ms, step.end_ms, mine & main, 0.62, **style)
        _bars(panel, rows + 0.41, start_ms, step.end_ms, mine & ~main, 0.14, **style)
    _number_microbatches(panel, step, rows, longest_ms)
    panel.set_yticks(range(len(step.ranks)), [_rank_name(step.run, rank) for rank in step.ranks])
    panel.set_ylim(len(step.ranks) - 0.4, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.grid(False, axis="y")
    more = f", first {len(step.ranks)} of {step.of} ranks" if step.of > len(step.ranks) else ""
    title(panel, f"{step.run.origin}: {milliseconds(step.run.step_time_s)} ms per step (step {step.number} shown{more})")


def _bars(
    panel: Axes,
    rows: NDArray[np.float64],
    start_ms: NDArray[np.float64],
    end_ms: NDArray[np.float64],
    chosen: NDArray[np.bool_],
    height: float,
    **style: Any,
) -> None:
    """A bar from start to end for each chosen span, drawn row by row: one artist for many bars is what keeps it quick."""
    for row in np.unique(rows[chosen]):
        mine = chosen & (rows == row)
        bars = np.stack([start_ms[mine], (end_ms - start_ms)[mine]], axis=1)
        panel.broken_barh([(float(start), float(length)) for start, length in bars], (row - height / 2, height), **style)


def _number_microbatches(panel: Axes, step: _Step, rows: NDArray[np.float64], longest_ms: float) -> None:
    """Writes the microbatch into passes that are wide enough for it."""
    inches_per_ms = (WIDTH_IN - 1.6) / longest_ms
    passes = (step.spans.microbatch >= 0) & np.isin(step.spans.phase, (Phase.FORWARD, Phase.BACKWARD))
    for index in np.flatnonzero(passes):
        number, length_ms = str(step.spans.microbatch[index]), step.end_ms[index] - step.start_ms[index]
        if length_ms * inches_per_ms > _DIGIT_IN * (len(number) + 1):
            centre_ms = (step.start_ms[index] + step.end_ms[index]) / 2
            colour = "white" if step.spans.phase[index] in _DARK else "black"
            panel.text(centre_ms, rows[index], number, ha="center", va="center_baseline", fontsize=7, color=colour)


def _rank_name(run: Run, rank: int) -> str:
    return label(run.rank_names[rank], 22) if rank < len(run.rank_names) else f"rank {rank}"


def _legend(steps: Sequence[_Step]) -> list[Patch]:
    """Patches for the phases that are there, in the order of a step."""
    from matplotlib.patches import Patch

    present = {Phase(int(p)) for step in steps for p in np.unique(step.spans.phase[step.end_ms > step.arrival_ms])}
    patches = [
        Patch(color=colour, label=_PHASE_NAMES.get(phase, phase.label))
        for phase, colour in _PHASE_COLOURS.items()
        if phase in present
    ]
    return [*patches, Patch(color=_WAITING_COLOUR, label="waiting for other ranks")]
