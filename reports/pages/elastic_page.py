"""The page of training along events of hosts: throughput over time, times by segment, and losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scaleproof.reports.charts import elastic as charts
from scaleproof.reports.pages.sections import Page, Section, Sources, pictured, slug
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.read.elastic import ElasticRun, read
from scaleproof.reports.text import signed_percent
from scaleproof.simulator.common.units import counted, format_interval_s, format_time_s

_TITLES = ("Time", "Predicted", "90 % between", "Measured", "Error")


def page(folder: Path) -> Page:
    """The page of what `faults SCENARIO --out` wrote. Raises InputError if it cannot be read."""
    runs, provenance = read(folder)
    sections = [section for run in runs for section in _sections(run)]
    rows: list[list[str | float | int | None]] = [
        [run.predicted.scenario, row.name.strip(), row.predicted_s, row.measured_s] for run in runs for row in run.rows
    ]
    sheets = {"times.csv": csv_tables.rows_csv(("scenario", "time", "predicted_s", "measured_s"), rows)}
    where = [provenance[name] for name in ("cpu", "system", "date") if name in provenance]
    lede = f"Measured on {', '.join(where)}." if where else ""
    notes = tuple(f"{run.predicted.scenario}: {run.warning}" for run in runs if run.warning)
    eyebrow = "scaleproof · hosts that fail, go and join"
    return Page(eyebrow, _headline(runs), lede, [], notes, sections, sheets, Sources([origins.made_with()]), is_empty=not runs)


def _headline(runs: tuple[ElasticRun, ...]) -> str:
    if not runs:
        return "No run along events."
    worst = max((run.error for run in runs), key=abs)
    right = sum(run.state.right for run in runs)
    return (
        f"{counted(len(runs), 'run')} along events: total times predicted to {signed_percent(worst)} at worst, "
        f"the state right in {right}."
    )


def _sections(run: ElasticRun) -> Iterator[Section]:
    name = run.predicted.scenario
    causes = "; ".join(cause for change in run.measured.changes for cause in change.causes)
    data = {"titles": _TITLES, "rows": list(_rows(run)), "words": ()}
    pictures = pictured(charts.throughput(slug(name), run), charts.losses(slug(name), run))
    heading = f"{causes[:1].upper()}{causes[1:]}"
    intro = f"{name}, {counted(run.predicted.steps, 'step')}, {run.on}. Parameters: {run.state.words}."
    yield Section(slug(name), name, heading, intro, pictures, after="rows.html", data=data, result=signed_percent(run.error))


def _rows(run: ElasticRun) -> Iterator[tuple[str, ...]]:
    for row in run.rows:
        between = format_interval_s(row.low_s, row.high_s)
        error = signed_percent(row.predicted_s / row.measured_s - 1.0) if row.measured_s > 0 else ""
        yield row.name.strip(), format_time_s(row.predicted_s), between, format_time_s(row.measured_s), error
