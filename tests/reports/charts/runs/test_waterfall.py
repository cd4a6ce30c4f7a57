"""The waterfall leads from the measured to the predicted step time, whatever its causes leave unexplained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaleproof.reports.charts.chart import Boxes
from scaleproof.reports.charts.runs.waterfall import waterfall
from scaleproof.reports.charts.style import COMPUTE, EXPOSED_COMMUNICATION
from scaleproof.reports.read.results import Case
from scaleproof.simulator.run.explanation import ErrorPart, Explanation
from tests.reports.example import CASES, make_run


def _case(*parts: ErrorPart) -> Case:
    predicted, measured = make_run("predicted", CASES[0]), make_run("measured", CASES[0])
    case = Case("ring-2", "data_parallel", "ring", 2, 2, predicted, measured)
    return replace(case, explanation=Explanation(parts=parts))


def test_bars_lead_from_measured_to_predicted() -> None:
    case = _case(
        ErrorPart("rate", -0.002),
        ErrorPart("forward", 0.005),
        ErrorPart("backward", 1e-9),
    )
    assert case.predicted is not None
    assert case.measured is not None
    chart = waterfall([case])
    assert chart is not None
    (view,) = chart.views
    boxes = [mark for mark in view.marks if isinstance(mark, Boxes)]
    names = [words.partition(" ")[0] for _, words in view.y.ticks]
    assert names == ["measured", "forward", "communication", "rest", "predicted"]
    assert [box.width[0] for box in boxes[1:3]] == pytest.approx([5, 2])
    assert [box.colour for box in boxes[1:3]] == [COMPUTE, EXPOSED_COMMUNICATION]
    ends_ms = [boxes[i].left[0] + boxes[i].width[0] for i in (0, -1)]
    assert ends_ms == pytest.approx([case.measured.step_time_s * 1e3, case.predicted.step_time_s * 1e3])


def test_without_causes_there_is_no_waterfall() -> None:
    assert waterfall([_case()]) is None
    assert waterfall([replace(_case(), explanation=None)]) is None
