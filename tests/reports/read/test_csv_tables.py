"""CSV tables: SI units and full precision."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from scaleproof.reports.read import csv_tables
from scaleproof.reports.read.results import Case, read
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.run.run import BREAKDOWN
from tests.reports.example import CASES, STEPS, make_run


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_case_table_has_a_row_per_case_with_step_times_and_error(eight: Path) -> None:
    rows = _rows(csv_tables.cases_csv(read(eight).cases))
    for row, case in zip(rows, CASES, strict=False):
        measured_s, error = case[4:]
        assert row["scenario"] == case[0]
        assert float(row["measured_step_time_s"]) == pytest.approx(measured_s, rel=1e-9)
        assert float(row["predicted_step_time_s"]) == pytest.approx(measured_s * (1 + error), rel=1e-9)
        assert float(row["error"]) == pytest.approx(error, rel=1e-6)
        assert float(row["measured_samples_per_s"]) == pytest.approx(16 * case[2] / measured_s, rel=1e-9)
    assert (rows[-1]["scenario"], rows[-1]["measured_step_time_s"], rows[-1]["error"]) == ("ring-8", "", "")
    assert "signal 9" in rows[-1]["failure"]


def test_the_phase_table_has_a_row_per_case_and_phase(eight: Path) -> None:
    rows = _rows(csv_tables.phases_csv(read(eight).cases))
    assert len(rows) == 9 * len(Phase)
    forward = next(row for row in rows if (row["scenario"], row["phase"]) == ("ring-2", "forward"))
    predicted, measured = (make_run(origin, CASES[0]).phase_s["forward"] for origin in ("predicted", "measured"))
    assert float(forward["predicted_s"]) == pytest.approx(predicted)
    assert float(forward["difference_s"]) == pytest.approx(predicted - measured)


def test_causes_add_up_to_the_step_time(eight: Path) -> None:
    rows = _rows(csv_tables.breakdown_csv(read(eight).cases))
    assert len(rows) == 9 * len(BREAKDOWN)
    for case in CASES:
        total_s = sum(float(row["measured_s"]) for row in rows if row["scenario"] == case[0])
        assert total_s == pytest.approx(case[4], rel=1e-9)


def test_the_step_time_range_contains_eight_of_ten_steps() -> None:
    run = make_run("measured", CASES[0])
    assert len(run.step_times_s) == STEPS
    assert csv_tables.step_range_s(run) == pytest.approx(tuple(np.percentile(run.step_times_s, (10, 90))))


def test_names_are_never_formulas_and_commas_are_quoted() -> None:
    case = Case("=HYPERLINK(1)", "@x", 'a, "b"\nc', 2, 2, failure="-1")
    (row,) = _rows(csv_tables.cases_csv([case]))
    assert (row["scenario"], row["family"], row["strategy"], row["failure"]) == ("'=HYPERLINK(1)", "'@x", 'a, "b"\nc', "'-1")
