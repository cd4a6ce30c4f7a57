"""Predicted and measured timelines in one picture: marked differences and their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from scaleproof.reports.charts.style import Drawn
from scaleproof.reports.read.results import Case
from scaleproof.reports.timeline import side_by_side as module
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step import Step, typical_step
from scaleproof.reports.timeline.timeline import draw
from scaleproof.simulator.run.explanation import Divergence, Explanation
from tests.reports.example import CASES, make_run

PIPELINE = CASES[4]


def steps() -> tuple[Step, Step]:
    above, below = (typical_step(make_run(side, PIPELINE)) for side in ("predicted", "measured"))
    assert above is not None
    assert below is not None
    return above, below


def parting(**changes: Any) -> Divergence:
    known = Divergence(1, (1,), "backward", stage=1, microbatch=-1, predicted_s=0.1, measured_s=0.2)
    return replace(known, **changes)


def case(*partings: Divergence) -> Case:
    runs = make_run("predicted", PIPELINE), make_run("measured", PIPELINE)
    return Case("a", "", "", 2, 2, *runs, explanation=Explanation(partings=partings))


@pytest.fixture(scope="module")
def plain() -> Drawn:
    """The picture without marks."""
    drawn = side_by_side(case())
    assert drawn is not None
    return drawn


@pytest.mark.full
def test_marked_pictures_are_reproducible() -> None:
    first, second = (side_by_side(case(parting())) for _ in range(2))
    assert first == second


def test_a_mark_frames_its_spans_in_both_timelines() -> None:
    above, below = steps()
    places = module._places((above, below), parting(microbatch=2))
    assert places is not None
    for step, place in zip((above, below), places, strict=True):
        own = (step.spans.rank == 1) & (step.spans.microbatch == 2) & (step.kind == 1)
        assert place.row == 1
        assert place.begin_ms == pytest.approx(step.arrival_ms[own].min())
        assert place.end_ms == pytest.approx(step.end_ms[own].max())


@pytest.mark.parametrize("changes", [{"rank": 9}, {"phase": "sleep"}, {"microbatch": 77}, {"measured_ranks": ()}])
def test_parts_missing_in_one_timeline_are_not_marked(changes: dict[str, object]) -> None:
    assert module._places(steps(), parting(**changes)) is None


def test_a_picture_without_marks_equals_the_plain_one_and_is_reproducible(plain: Drawn) -> None:
    assert plain.svg.startswith(b"<?xml")
    assert side_by_side(case(parting(rank=9), parting(phase="sleep"))) == plain


def test_marks_are_numbered_and_joined() -> None:
    above, below = steps()
    figure = Figure()
    panels = draw(figure, (above, below), ["", ""])
    marks = [parting(), parting(rank=0, measured_ranks=(0,), stage=0)]
    places = [module._places((above, below), mark) for mark in marks]
    module._mark(figure, panels, (above, below), [(m, p) for m, p in zip(marks, places, strict=True) if p is not None])
    for panel in panels:
        assert {text.get_text() for text in panel.texts} >= {"1", "2"}
    assert "backward on worker 1" in panels[-1].get_xlabel()
    assert len(figure.artists) == 2
