"""Fits as sections: predictions before and after, what runs taught about constants, the target, and the run to measure next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from scaleproof.reports.charts import fit as charts
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.fit_record import FitRecord, FitRun
from scaleproof.simulator.common.units import (
    counted,
    format_change,
    format_interval_s,
    format_percent,
    format_time_s,
)

# Runs that consoles print.
_MOST_RUNS: Final = 16
# Standard deviations from the mean to the ends of a 90 % interval.
_DEVIATIONS: Final = 1.645


def describe(record: FitRecord) -> Description:
    """The description of a fit."""
    target = record.target
    ends = format_interval_s(target.low_s, target.high_s)
    return Description(
        f"{record.framework} on {record.cluster}, fitted to {counted(len(record.given), 'run')} of {record.model}",
        f"{target.name} on {counted(target.gpus, 'GPU')}: {format_time_s(target.after_s)} a step ({ends})",
        figures=[(name, of) for of, name in _names(record).items()],
        sections=[constants(record), runs(record), _target(record), *_next(record)],
    )


def _names(record: FitRecord) -> dict[str, str]:
    return {"framework": record.framework, "cluster": record.cluster, "model": record.model}


def constants(record: FitRecord) -> Section:
    """The constants before and after the runs."""
    found = record.constants
    columns = [
        Column("constant", [one.name for one in found], is_text=True),
        Column("prior", [one.prior for one in found]),
        Column("90 % interval", [f"{one.prior_low} to {one.prior_high}" for one in found], under="prior"),
        Column("posterior", [one.value for one in found]),
        Column("90 % interval", [f"{one.low} to {one.high}" for one in found], under="posterior"),
        Column("", ["moved" if one.moved else "-" for one in found], is_text=True),
        Column("", [one.meaning for one in found], is_text=True, under="constant"),
    ]
    return Section("Constants", "What the runs taught", tables=[Table(columns)], charts=lambda: [charts.constants(record)])


def runs(record: FitRecord) -> Section:
    """The errors of runs before and after the fit."""
    every = record.runs
    columns = [
        Column("run", [run.short_place + ("" if run.is_given else " (check)") for run in every], is_text=True),
        Column("GPUs", [str(run.gpus) for run in every]),
        Column("", ["extrapolated" if run.is_extrapolated else "" for run in every], under="GPUs", is_detail=True),
        Column("layout", [run.layout for run in every], is_text=True),
        Column("measured", [format_time_s(run.measured_s) for run in every]),
        Column("predicted", [format_time_s(run.after_s) for run in every], is_detail=True),
        Column("before", [format_change(run.error_before) for run in every]),
        Column("after", [format_change(run.error_after) for run in every]),
        Column("90 % interval", [format_interval_s(run.low_s, run.high_s) for run in every], under="predicted"),
    ]
    below = [_median(name, some) for name, some in (("given", record.given), ("checked", record.checked)) if some]
    return Section(
        "Runs",
        "Predicted against measured",
        "Errors of predictions before and after the fit.",
        tables=[Table(columns, below=below, most_rows=_MOST_RUNS), *_regret(record)],
        charts=lambda: [charts.by_scale(record)],
    )


def _median(name: str, some: Sequence[FitRun]) -> str:
    before, after = (median(abs(getattr(run, f"error_{when}")) for run in some) for when in ("before", "after"))
    inside = f"{sum(run.is_inside for run in some)} of {len(some)} in their 90 % interval"
    return f"median error of the {name} runs: {format_percent(before)} before, {format_percent(after)} after, {inside}"


def _regret(record: FitRecord) -> Iterator[Table]:
    """Yields groups of measured layouts, with the one that fitted predictions choose; nothing without groups."""
    found = record.regrets
    if not found:
        return
    mean, worst = sum(one.regret for one in found) / len(found), max(one.regret for one in found)
    note = "Regret is the measured time of the chosen layout over that of the fastest one, less one: mean "
    brief = []
    for one in found:
        choice = f"chooses {one.chosen}" + ("" if one.regret == 0 else f" where {one.best} is the fastest")
        brief.append(f"{one.group}: of {one.runs} layouts it {choice}, regret {format_percent(one.regret)}")
    columns = [
        Column("group", [one.group for one in found], is_text=True),
        Column("layouts", [str(one.runs) for one in found]),
        Column("chosen", [one.chosen for one in found], is_text=True),
        Column("fastest", [one.best for one in found], is_text=True),
        Column("regret", [format_percent(one.regret) for one in found]),
    ]
    notes = [f"{note}{format_percent(mean)}, worst {format_percent(worst)}"]
    yield Table(columns, "The choice among measured layouts", notes, brief=brief)


def _target(record: FitRecord) -> Section:
    target = record.target
    ends = format_interval_s(target.low_s, target.high_s)
    before = f"{format_time_s(target.before_s)}, {format_interval_s(target.before_low_s, target.before_high_s)}"
    where = "extrapolated to " if target.is_extrapolated else ""
    notes = [
        f"step time {format_time_s(target.after_s)}, 90 % interval {ends} (before: {before})",
        f"uncertain constants move it by ±{_reach(record.deviation)}, errors of single runs by ±{_reach(record.noise)}",
    ]
    if unlearned := [one.name for one in record.constants if not one.moved]:
        notes.append(f"not learned from these runs: {', '.join(unlearned)}")
    if not record.next_runs:
        notes.append("no other layout can be measured on these GPUs; give more with --gpus")
    heading = f"target {target.name}, {where}{counted(target.gpus, 'GPU')}, {target.layout}"
    return Section("Target", heading, notes=notes, is_headed=True)


def _next(record: FitRecord) -> Iterator[Section]:
    """Yields the run to measure next; nothing where no layout can be measured."""
    found = record.next_runs
    if not found:
        return
    best = found[0]
    change = f"from ±{_reach(record.deviation)} to ±{_reach(best.deviation)}"
    narrows = (
        f"predicted {format_time_s(best.step_time_s)} a step; narrows what constants leave uncertain of the target {change}"
    )
    others = [f"or {counted(one.gpus, 'GPU')}, {one.layout}: to ±{_reach(one.deviation)}" for one in found[1:]]
    columns = [
        Column("layout", [one.layout for one in found], is_text=True),
        Column("GPUs", [f"{one.gpus:,}" for one in found]),
        Column("predicted step", [format_time_s(one.step_time_s) for one in found]),
        Column("target after it", [f"±{_reach(one.deviation)}" for one in found]),
        Column("fields of the scenario", [one.fields for one in found], is_text=True),
    ]
    heading = f"measure next, of {counted(record.candidates, 'layout')}: {counted(best.gpus, 'GPU')}, {best.layout}"
    yield Section("Next run", heading, tables=[Table(columns, notes=[narrows], brief=[narrows, *others])], is_headed=True)


def _reach(deviation: float) -> str:
    """Half a 90 % interval as a share."""
    return format_percent(math.expm1(_DEVIATIONS * deviation))
