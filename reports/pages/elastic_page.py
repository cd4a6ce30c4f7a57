"""The page of runs along events of hosts: throughput over time, times by segment, and losses."""

from __future__ import annotations

from pathlib import Path

from scaleproof.reports.descriptions import elastic
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.simulator.analysis.elastic.outcome import FILE, ElasticRecord


def page(folder: Path) -> Page:
    """The page of what `faults SCENARIO --out` wrote. Raises InputError if it cannot be read."""
    found = ElasticRecord.read(folder / FILE, f"--out {folder}")
    rows: list[list[str | float | int | None]] = [
        [run.predicted.scenario, row.name.strip(), row.predicted_s, row.measured_s] for run in found.events for row in run.rows
    ]
    sheets = {"times.csv": csv_tables.rows_csv(("scenario", "time", "predicted_s", "measured_s"), rows)}
    notes = [f"{run.predicted.scenario}: {run.warning}" for run in found.events if run.warning]
    sources = Sources([origins.made_with()])
    return described.page(elastic.describe_runs(found), sheets, sources, notes, is_empty=not found.events)
