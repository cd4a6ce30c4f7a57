"""The page of a fit, with tables of all its runs and constants."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.reports.descriptions import fit
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.simulator.analysis.fit_record import FILE, FitRecord

_RUNS: Final = (
    "run", "given", "gpus", "layout", "measured_s", "before_s", "after_s", "low_s", "high_s", "error_before", "error_after",
)  # fmt: skip
_CONSTANTS: Final = ("constant", "prior", "prior_low", "prior_high", "value", "low", "high", "moved")


def page(folder: Path) -> Page:
    """The page of what `fit --page` wrote. Raises InputError if it cannot be read."""
    record = FitRecord.read(folder / FILE, f"--page {folder}")
    sheets = {
        "runs.csv": csv_tables.rows_csv(_RUNS, _run_rows(record)),
        "constants.csv": csv_tables.rows_csv(_CONSTANTS, _constant_rows(record)),
    }
    return described.page(fit.describe(record), sheets, Sources([origins.made_with()]))


def _run_rows(record: FitRecord) -> list[list[str | float | int | None]]:
    return [
        [
            *(run.place, str(run.is_given), run.gpus, run.layout, run.measured_s, run.before_s, run.after_s),
            *(run.low_s, run.high_s, run.error_before, run.error_after),
        ]
        for run in record.runs
    ]


def _constant_rows(record: FitRecord) -> list[list[str | float | int | None]]:
    return [
        [one.name, one.prior, one.prior_low, one.prior_high, one.value, one.low, one.high, str(one.moved)]
        for one in record.constants
    ]
