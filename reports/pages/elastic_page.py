"""The page of training along events of hosts: throughput over time, times by segment, and losses."""

from __future__ import annotations

from pathlib import Path

from scaleproof.reports.charts import elastic as charts
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.elastic import ElasticRun, read
from scaleproof.reports.sections import Column, Description, Section, Table, slug
from scaleproof.reports.text import signed_percent
from scaleproof.simulator.common.units import counted, format_interval_s, format_time_s


def page(folder: Path) -> Page:
    """The page of what `faults SCENARIO --out` wrote. Raises InputError if it cannot be read."""
    runs, provenance = read(folder)
    rows: list[list[str | float | int | None]] = [
        [run.predicted.scenario, row.name.strip(), row.predicted_s, row.measured_s] for run in runs for row in run.rows
    ]
    sheets = {"times.csv": csv_tables.rows_csv(("scenario", "time", "predicted_s", "measured_s"), rows)}
    where = [provenance[name] for name in ("cpu", "system", "date") if name in provenance]
    notes = [f"{run.predicted.scenario}: {run.warning}" for run in runs if run.warning]
    summary = [f"measured on {', '.join(where)}"] if where else []
    found = Description("hosts that fail, go and join", _headline(runs), summary, sections=[_section(run) for run in runs])
    return described.page(found, sheets, Sources([origins.made_with()]), notes, is_empty=not runs)


def _headline(runs: tuple[ElasticRun, ...]) -> str:
    if not runs:
        return "No run along events."
    worst = max((run.error for run in runs), key=abs)
    right = sum(run.state.right for run in runs)
    return (
        f"{counted(len(runs), 'run')} along events: total times predicted to {signed_percent(worst)} at worst, "
        f"the state right in {right}."
    )


def _section(run: ElasticRun) -> Section:
    name = run.predicted.scenario
    causes = "; ".join(cause for change in run.measured.changes for cause in change.causes)
    rows = run.rows
    errors = [signed_percent(row.predicted_s / row.measured_s - 1.0) if row.measured_s > 0 else "" for row in rows]
    columns = [
        Column("time", [row.name.strip() for row in rows], is_text=True),
        Column("predicted", [format_time_s(row.predicted_s) for row in rows]),
        Column("90 % between", [format_interval_s(row.low_s, row.high_s) for row in rows]),
        Column("measured", [format_time_s(row.measured_s) for row in rows]),
        Column("error", errors),
    ]
    return Section(
        name,
        causes,
        f"{name}, {counted(run.predicted.steps, 'step')}, {run.on}. Parameters: {run.state.words}.",
        tables=[Table(columns, brief=())],
        charts=lambda: [charts.throughput(slug(name), run), charts.losses(slug(name), run)],
        result=signed_percent(run.error),
    )
