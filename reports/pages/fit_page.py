"""The page of a fit: predictions by scale, constants before and after, regret among the measured runs, and the next run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from pydantic import ValidationError

from scaleproof.reports.charts import fit as charts
from scaleproof.reports.pages.sections import Page, Section, Sources, pictured
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.text import percent, signed_percent
from scaleproof.simulator.analysis.fit_record import FILE, FitRecord
from scaleproof.simulator.common.errors import InputError, one_line
from scaleproof.simulator.common.units import counted, format_interval_s, format_time_s, format_times_s

_RUNS: Final = (
    "run", "given", "gpus", "layout", "measured_s", "before_s", "after_s", "low_s", "high_s", "error_before", "error_after",
)  # fmt: skip
_CONSTANTS: Final = ("constant", "prior", "prior_low", "prior_high", "value", "low", "high", "moved")
_REACH: Final = 1.645


def page(folder: Path) -> Page:
    """The page of what `fit --page` wrote. Raises InputError if it cannot be read."""
    path = folder / FILE
    try:
        record = FitRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with --page {folder}") from None
    sections = [_scale(record), _constants(record), *_regret(record), *_next(record)]
    sheets = {
        "runs.csv": csv_tables.rows_csv(_RUNS, _run_rows(record)),
        "constants.csv": csv_tables.rows_csv(_CONSTANTS, _constant_rows(record)),
    }
    facts = [("framework", record.framework), ("cluster", record.cluster), ("model", record.model)]
    eyebrow = f"scaleproof · fit of {record.framework} on {record.cluster}"
    return Page(eyebrow, _headline(record), _lede(record), facts, (), sections, sheets, Sources([origins.made_with()]))


def _headline(record: FitRecord) -> str:
    target = record.target
    ends = format_interval_s(target.low_s, target.high_s)
    return f"{target.name} on {counted(target.gpus, 'GPU')}: {format_time_s(target.after_s)} a step ({ends})."


def _lede(record: FitRecord) -> str:
    before, after = (median(abs(getattr(run, f"error_{when}")) for run in record.given) for when in ("before", "after"))
    text = f"Constants were fitted to {counted(len(record.given), 'run')}, whose median error went from {percent(before)} to "
    text += f"{percent(after)}."
    if record.target.is_extrapolated:
        most = max(run.gpus for run in record.given)
        text += f" The target is extrapolated: no given run has more than {most:,} GPUs."
    return text


def _scale(record: FitRecord) -> Section:
    rows = [
        (
            run.short_place,
            f"{run.gpus:,}" + (", extrapolated" if run.is_extrapolated else ""),
            run.layout,
            format_time_s(run.measured_s),
            f"{format_time_s(run.after_s)} ({format_times_s(run.low_s, run.high_s)})",
            f"{signed_percent(run.error_before)} → {signed_percent(run.error_after)}",
        )
        for run in record.runs
    ]
    titles = "Run", "GPUs", "Layout", "Measured", "Predicted, 90 %", "Error before → after"
    data = {"titles": titles, "rows": rows, "words": (1, 2)}
    pictures = pictured(charts.by_scale(record))
    return Section("scale", "By scale", "Predicted against measured", pictures=pictures, after="rows.html", data=data)


def _constants(record: FitRecord) -> Section:
    rows = [
        (
            f"{one.name}: {one.meaning}",
            f"{one.prior} ({one.prior_low} to {one.prior_high})",
            f"{one.value} ({one.low} to {one.high})" if one.moved else "not learned",
        )
        for one in record.constants
    ]
    titles = "Constant", "Before, 90 %", "After, 90 %"
    data = {"titles": titles, "rows": rows, "words": ()}
    pictures = pictured(charts.constants(record))
    return Section("constants", "Constants", "What the runs taught", pictures=pictures, after="rows.html", data=data)


def _regret(record: FitRecord) -> Iterator[Section]:
    """Groups of measured layouts, with the one that fitted predictions choose; none without groups."""
    if not record.regrets:
        return
    rows = [(one.group, str(one.runs), one.chosen, one.best, percent(one.regret)) for one in record.regrets]
    mean, worst = sum(one.regret for one in record.regrets) / len(record.regrets), max(one.regret for one in record.regrets)
    intro = f"Regret is the measured time of the chosen layout over that of the fastest one, less one: mean {percent(mean)}, "
    intro += f"worst {percent(worst)}."
    data = {"titles": ("Group", "Layouts", "Chosen", "Fastest", "Regret"), "rows": rows, "words": (2, 3)}
    yield Section("regret", "Choice", "The choice among measured layouts", intro, after="rows.html", data=data)


def _next(record: FitRecord) -> Iterator[Section]:
    if not record.next_runs:
        return
    rows = [
        (
            one.layout,
            f"{one.gpus:,}",
            format_time_s(one.step_time_s),
            f"±{percent(math.expm1(_REACH * one.deviation))}",
            one.fields,
        )
        for one in record.next_runs
    ]
    intro = (
        f"Of {counted(record.candidates, 'layout')}, the first narrows what uncertain constants leave open of the target from "
    )
    intro += f"{charts.narrowing(record)}."
    titles = "Layout", "GPUs", "Predicted step", "Target after it", "Fields of the scenario"
    data = {"titles": titles, "rows": rows, "words": (4,), "code": 4}
    yield Section("next", "Next run", "The run to measure next", intro, after="rows.html", data=data)


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
