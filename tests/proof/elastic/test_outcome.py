"""Measured and predicted outcomes of a fault, as text and JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scaleproof.commands.measuring.faults import describe
from scaleproof.proof.elastic.measured import Loss
from scaleproof.proof.elastic.outcome import FaultOutcome, TimeComparison, loss_rows
from scaleproof.proof.elastic.predicted import FaultForecast

DRAWS = np.linspace(1.0, 3.0, 1001)
FORECAST = FaultForecast(DRAWS, DRAWS, DRAWS, DRAWS)
ROWS = (TimeComparison("detection", 2.0, 1.6, 1.1, 2.9), TimeComparison("step", 0.5, 0.4))
OUTCOME = FaultOutcome("a rank killed", "in the middle", ROWS, "the same", True)


def test_random_times_are_shown_with_their_range() -> None:
    rows = {one.name.strip(): one for one in loss_rows(FORECAST, Loss(1.0, 1.6, 3.0, 4.0))}
    drawn = rows["detection"]
    assert (drawn.predicted_s, drawn.low_s, drawn.high_s) == pytest.approx((2.0, 1.1, 2.9))
    assert drawn.error == pytest.approx(0.25), "positive where the forecast is too long"
    assert [name for name, one in rows.items() if one.low_s is not None] == ["detection", "rendezvous"]


def test_rendezvous_rows_are_omitted_without_a_rendezvous() -> None:
    rows = list(loss_rows(FORECAST, Loss(1.0, 2.0, 3.0, 4.0)))
    reported = ["detection", "restart", "rendezvous", "processes", "lost work", "lost in all"]
    assert [one.name.strip() for one in rows] == reported
    assert {one.name: (one.predicted_s, one.measured_s) for one in rows}["lost in all"] == pytest.approx((8.0, 10.0))
    alone = list(loss_rows(FORECAST, Loss(1.0, 2.0, 0.0, 4.0)))
    assert [one.name for one in alone] == ["detection", "restart", "lost work", "lost in all"]


def test_text_has_a_line_for_each_time() -> None:
    lines = describe([OUTCOME, OUTCOME]).splitlines()
    assert lines[:2] == ["a rank killed", "  in the middle"]
    assert lines[3].split() == ["detection", "2.00", "s", "1.10", "s", "to", "2.90", "s", "1.60", "s", "+25.0", "%"]
    assert lines[4].split() == ["step", "500", "ms", "400", "ms", "+25.0", "%"]
    assert lines[5] == "  parameters: the same"
    assert lines[6] == ""
    assert len({len(line) for line in lines[2:5]}) == 1, "columns stand under one another"


def test_json_has_the_errors() -> None:
    reported = json.loads(json.dumps(OUTCOME.plain()))
    assert [one["error"] for one in reported["rows"]] == pytest.approx([0.25, 0.25])
    assert reported["right"] is True
