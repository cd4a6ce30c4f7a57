"""A waterfall chart of reconciled differences: from the measured step time, cause by cause, to the predicted one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BUBBLE, COMPUTE, EXPOSED_COMMUNICATION, GREY, INK, UNMODELLED, label
from scaleproof.reports.read.results import Case
from scaleproof.reports.text import signed_percent, spaced, time_unit
from scaleproof.simulator.common.units import format_change_s, format_time_s

_GROUPS: Final = {
    "compute": COMPUTE, "communication": EXPOSED_COMMUNICATION, "waiting": BUBBLE, "unmodelled": UNMODELLED,
}  # fmt: skip
_WORDS: Final = {
    "volume": "communication volume", "rate": "communication rate", "overlap": "overlap of communication",
    "bubble": "waiting for stages", "unmodelled": "not modelled",
}  # fmt: skip
# share of the step below which a cause is part of the rest
_LEAST: Final = 0.002
_BAR: Final = 0.66
_BAR_PX: Final = 30


class _Step(NamedTuple):
    """A bar. name: of its row. group: decides its colour."""

    name: str
    begin_s: float
    end_s: float
    group: str


def waterfall(cases: Sequence[Case]) -> Chart | None:
    """A view for each reconciled case, the largest error first; None if no difference has been split into causes."""
    explained = [case for case in cases if case.error is not None and case.explanation and case.explanation.parts]
    if not explained:
        return None
    explained.sort(key=lambda case: -abs(case.error or 0.0))
    names = _distinct([label(case.scenario, 60) for case in explained])
    steps = [_steps(case) for case in explained]
    views = [
        _view(case, some, (name,) if len(names) > 1 else ()) for case, some, name in zip(explained, steps, names, strict=True)
    ]
    choosers = (("scenario", tuple(names)),) if len(names) > 1 else ()
    caption = "From measured to predicted step time. What goes to the left was predicted too fast, what goes right too slow."
    height = 110 + _BAR_PX * max(map(len, steps))
    return Chart("waterfall", "Difference by cause", tuple(views), caption, choosers, height_px=height)


def _distinct(names: Sequence[str]) -> list[str]:
    return [name if names.index(name) == i else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _steps(case: Case) -> list[_Step]:
    """Measured, the causes from the largest to the smallest, what remains, and predicted."""
    assert case.predicted, "was compared"
    assert case.measured, "was compared"
    assert case.explanation, "was explained"
    measured_s, predicted_s = case.measured.step_time_s, case.predicted.step_time_s
    causes = [part for part in case.explanation.parts if abs(part.difference_s) >= _LEAST * measured_s]
    steps, level_s = [_Step("measured", 0.0, measured_s, "")], measured_s
    for part in sorted(causes, key=lambda part: -abs(part.difference_s)):
        name = _WORDS.get(part.name, spaced(part.name))
        steps.append(_Step(name, level_s, level_s + part.difference_s, part.group))
        level_s += part.difference_s
    if abs(predicted_s - level_s) >= _LEAST * measured_s:
        steps.append(_Step("rest", level_s, predicted_s, ""))
    return [*steps, _Step("predicted", 0.0, predicted_s, "")]


def _view(case: Case, steps: Sequence[_Step], choices: tuple[str, ...]) -> View:
    ends_s = [end_s for step in steps for end_s in ((step.begin_s, step.end_s) if step.begin_s else (step.end_s,))]
    unit, per_s = time_unit(max(ends_s))
    # differences of a few percent would not be visible on an axis from zero
    room_s = max(max(ends_s) - min(ends_s), 0.02 * max(ends_s))
    first_s = max(0.0, min(ends_s) - room_s)
    marks: list[Mark] = []
    for row, step in enumerate(steps):
        low_s, high_s = sorted((max(step.begin_s, first_s), step.end_s))
        colour = _GROUPS.get(step.group, GREY) if step.begin_s else INK
        box = [low_s * per_s], [(high_s - low_s) * per_s], [float(row)], [_BAR]
        marks.append(Boxes("", colour, *box, [f"{step.name}: {_amount(step)}"]))
        if row + 1 < len(steps):
            marks.append(Line("", GREY, [step.end_s * per_s] * 2, [row - _BAR / 2, row + 1 + _BAR / 2]))
    ticks = [f"{one.name} {_amount(one)}" for one in steps]
    x = ChartAxis(f"step time, {unit}", limits=(first_s * per_s, (max(ends_s) + 0.1 * room_s) * per_s), zero=False)
    y = ChartAxis("", ticks=tuple((float(row), words) for row, words in enumerate(ticks)), limits=(len(steps) - 0.4, -0.6))
    measured, predicted = (format_time_s(one.end_s) for one in (steps[0], steps[-1]))
    finding = f"{case.scenario}: {signed_percent(case.error)}, from {measured} measured to {predicted} predicted"
    return View(x, y, tuple(marks), finding, choices)


def _amount(step: _Step) -> str:
    """'12.3 ms' of a total, '+1.2 ms' of a cause."""
    if not step.begin_s:
        return format_time_s(step.end_s)
    return format_change_s(step.end_s - step.begin_s).replace("-", "−")
