"""The page of a diagnosis, with the timeline of the slowest and the median ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaleproof.reports.charts.still import still
from scaleproof.reports.descriptions import diagnosis
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, PageSection, Picture, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.timeline.step_chart import step_chart
from scaleproof.simulator.analysis.diagnosis import FILE, JOB_FOLDER, Diagnosis
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.run.files import load_run

_MOST_SPANS = 6_000


def page(folder: Path) -> Page:
    """The page of what `diagnose --out` wrote. Raises InputError if it cannot be read."""
    found = Diagnosis.read(folder / FILE, f"diagnose --out {folder}")
    tables: dict[str, Sequence[Record]]
    tables = {"findings": found.findings, "ranks": found.ranks, "hosts": found.hosts, "memory": found.memory}
    sheets = {f"{name}.csv": _csv(rows) for name, rows in tables.items() if rows}
    return described.page(
        diagnosis.describe(found), sheets, Sources([origins.made_with()]), more=list(_timeline(folder, found))
    )


def _csv(records: Sequence[Record]) -> str:
    names = list(type(records[0]).model_fields)
    rows = ([getattr(record, name) for name in names] for record in records)
    cells = ([" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in row] for row in rows)
    return csv_tables.rows_csv(names, cells)


def _timeline(folder: Path, found: Diagnosis) -> Iterator[PageSection]:
    try:
        run = load_run(folder / JOB_FOLDER)
    except (OSError, ValueError):
        return
    chart = step_chart("timeline", "One step", [run], _MOST_SPANS)
    if chart is not None:
        intro = f"A typical step of {len(run.rank_names)} of {len(found.ranks)} traced ranks, with those of findings and the "
        intro += "median one. A row is a rank; thin bars are overlapped communication."
        yield PageSection("timeline", "Timeline", "One step, rank by rank", intro, [Picture(chart, still(chart))])
