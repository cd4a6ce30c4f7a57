"""Console text of a fit: what runs taught, errors before and after, what remains uncertain, and the run to measure next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.common.units import (
    counted,
    format_change,
    format_interval_s,
    format_percent,
    format_time_s,
)

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.fit_record import FitRecord

# Runs of a table; more are counted.
_MOST_RUNS: Final = 16
_DEVIATIONS: Final = 1.645


def describe(record: FitRecord, out: Path | None) -> str:
    """Console text of a fit. out: the file that it was written to."""
    head = f"{record.framework} on {record.cluster}, fitted to {counted(len(record.given), 'run')} of {record.model}"
    parts = [head, "", *constants_table(record), "", *runs_table(record), "", *_target(record), *_next(record)]
    if out is not None:
        parts += ["", f"{out}: use it with --set framework={out}"]
    return "\n".join(parts)


def constants_table(record: FitRecord) -> Iterator[str]:
    """Lines of the constants before and after the runs."""
    rows = [("constant", "prior", "90 % interval", "posterior", "90 % interval", "", "")]
    for one in record.constants:
        prior, posterior = f"{one.prior_low} to {one.prior_high}", f"{one.low} to {one.high}"
        rows.append((one.name, one.prior, prior, one.value, posterior, "moved" if one.moved else "-", one.meaning))
    yield from table(rows, "<>>>><<", indent="  ")


def runs_table(record: FitRecord) -> Iterator[str]:
    """Lines of the errors of runs before and after the fit."""
    rows = [("run", "GPUs", "layout", "measured", "before", "after", "90 % interval")]
    for run in record.runs[:_MOST_RUNS]:
        ends = format_interval_s(run.low_s, run.high_s)
        errors = format_change(run.error_before), format_change(run.error_after)
        place = run.short_place + ("" if run.is_given else " (check)")
        rows.append((place, str(run.gpus), run.layout, format_time_s(run.measured_s), *errors, ends))
    yield from table(rows, "<><>>>>", indent="  ")
    if len(record.runs) > _MOST_RUNS:
        yield f"  and {counted(len(record.runs) - _MOST_RUNS, 'more run')}"
    for name, runs in (("given", record.given), ("checked", record.checked)):
        if runs:
            before, after = (median(abs(getattr(run, f"error_{when}")) for run in runs) for when in ("before", "after"))
            inside = f"{sum(run.is_inside for run in runs)} of {len(runs)} in their 90 % interval"
            change = f"{format_percent(before)} before, {format_percent(after)} after"
            yield f"  median error of the {name} runs: {change}, {inside}"
    for one in record.regrets:
        choice = f"chooses {one.chosen}" + ("" if one.regret == 0 else f" where {one.best} is the fastest")
        yield from wrapped(f"{one.group}: of {one.runs} layouts it {choice}, regret {format_percent(one.regret)}", "  ", "    ")


def _target(record: FitRecord) -> Iterator[str]:
    target = record.target
    ends = format_interval_s(target.low_s, target.high_s)
    before = f"{format_time_s(target.before_s)}, {format_interval_s(target.before_low_s, target.before_high_s)}"
    where = "extrapolated to " if target.is_extrapolated else ""
    yield f"target {target.name}, {where}{counted(target.gpus, 'GPU')}, {target.layout}"
    yield f"  step time {format_time_s(target.after_s)}, 90 % interval {ends} (before: {before})"
    unlearned = [one.name for one in record.constants if not one.moved]
    yield f"  uncertain constants move it by ±{_reach(record.deviation)}, errors of single runs by ±{_reach(record.noise)}"
    if unlearned:
        yield from wrapped(f"not learned from these runs: {', '.join(unlearned)}", "  ", "    ")


def _next(record: FitRecord) -> Iterator[str]:
    if not record.next_runs:
        yield "  no other layout can be measured on these GPUs; give more with --gpus"
        return
    best = record.next_runs[0]
    yield ""
    yield f"measure next, of {counted(record.candidates, 'layout')}: {counted(best.gpus, 'GPU')}, {best.layout}"
    change = f"from ±{_reach(record.deviation)} to ±{_reach(best.deviation)}"
    yield f"  predicted {format_time_s(best.step_time_s)} a step; narrows what constants leave uncertain of the target {change}"
    for one in record.next_runs[1:]:
        yield f"  or {counted(one.gpus, 'GPU')}, {one.layout}: to ±{_reach(one.deviation)}"


def _reach(deviation: float) -> str:
    """Half a 90 % interval as a share."""
    return format_percent(math.expm1(_DEVIATIONS * deviation))
