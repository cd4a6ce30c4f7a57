"""CSV tables: SI units and full precision."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from scaleproof.reports.read import csv_tables
from scaleproof.reports.read.results import Case, read
from tests.reports.example import CASES


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


def test_names_are_never_formulas_and_commas_are_quoted() -> None:
    case = Case("=HYPERLINK(1)", "@x", 'a, "b"\nc', 2, 2, failure="-1")
    (row,) = _rows(csv_tables.cases_csv([case]))
    assert (row["scenario"], row["family"], row["strategy"], row["failure"]) == ("'=HYPERLINK(1)", "'@x", 'a, "b"\nc', "'-1")
