"""Training along events of hosts as sections: the predicted timeline, and its comparison with runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from scaleproof.reports.charts import elastic as charts
from scaleproof.reports.descriptions.goodput import assumed
from scaleproof.reports.descriptions.runs import share_table
from scaleproof.reports.sections import Column, Description, Line, Section, Table, slug
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome, ElasticRecord
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline, HostChange
from scaleproof.simulator.common.units import (
    counted,
    format_change,
    format_interval_s,
    format_number,
    format_percent,
    format_time_s,
)

# Minimum seconds from which a part of a pause is printed.
_MIN_S: Final = 5e-4


def describe(found: ElasticTimeline, assumed_s: Mapping[str, float] = MappingProxyType({})) -> Description:
    """The description of a predicted timeline. assumed_s: times that the scenario does not give, by field."""
    hosts = counted(found.stretches[0].hosts, "host")
    events = counted(sum(len(change.causes) for change in found.changes), "event")
    title = f"{found.scenario}: {found.strategy} on {hosts} at first, {counted(found.steps, 'step')} with {events}"
    facts = {name: list(lines) for name, lines in _facts(found, assumed_s).items()}
    sections = [
        Section("Timeline", "Training between events", tables=[_stretches(found)]),
        Section("Time", "Where the time goes", facts=facts),
    ]
    return Description(title, f"{title}: {format_percent(found.ratio)} of the time are effective", sections=sections)


def describe_runs(found: ElasticRecord) -> Description:
    """The description of runs along events, with a section for each."""
    where = [found.provenance[name] for name in ("cpu", "system", "date") if name in found.provenance]
    summary = [f"measured on {', '.join(where)}"] if where else []
    return Description("hosts that fail, go and join", _finding(found.events), summary, sections=list(map(_run, found.events)))


def _finding(runs: tuple[ElasticOutcome, ...]) -> str:
    if not runs:
        return "no run along events"
    worst, right = max((run.total_error for run in runs), key=abs), sum(run.state.right for run in runs)
    count = counted(len(runs), "run")
    return f"{count} along events: total times predicted to {format_change(worst)} at worst, the state right in {right}"


def _run(run: ElasticOutcome) -> Section:
    predicted, measured = run.predicted, run.measured
    name, hosts = predicted.scenario, counted(predicted.stretches[0].hosts, "host")
    return Section(
        name,
        f"{name}: {counted(predicted.steps, 'step')} on {hosts} at first, {run.on}",
        facts={
            "changes": list(_changes(measured.changes)),
            "predicted": [] if run.follows else list(_changes(predicted.changes)),
            "effective": [f"{format_percent(predicted.ratio)} of the time, measured {format_percent(measured.ratio)}"],
            "parameters": [run.state.words],
        },
        tables=[_comparison(run)],
        charts=lambda: [charts.throughput(slug(name), run), charts.losses(slug(name), run)],
        result=format_change(run.total_error),
        is_headed=True,
    )


def _comparison(run: ElasticOutcome) -> Table:
    """Times, predicted and measured, with the errors of the predictions."""
    columns = [
        Column("time", [row.name for row in run.rows], is_text=True),
        Column("predicted", [format_time_s(row.predicted_s) for row in run.rows]),
        Column("90 % between", [format_interval_s(row.low_s, row.high_s) for row in run.rows]),
        Column("measured", [format_time_s(row.measured_s) for row in run.rows]),
        Column("error", ["" if row.error is None else format_change(row.error) for row in run.rows]),
    ]
    return Table(columns)


def _facts(found: ElasticTimeline, assumed_s: Mapping[str, float]) -> dict[str, Iterable[Line]]:
    spent = {name: seconds for name, seconds in found.parts_s.items() if seconds > _MIN_S}
    parts = share_table(
        list(spent), list(map(format_time_s, spent.values())), [part / found.total_s for part in spent.values()]
    )
    without = "" if found.undisturbed_s is None else f", {format_time_s(found.undisturbed_s)} without events"
    rates = format_number(found.samples_per_s), format_number(found.stretches[0].samples_per_s)
    return {
        "changes": _changes(found.changes),
        "total": [f"{format_time_s(found.total_s)}{without}"],
        "effective": [f"{format_percent(found.ratio)} of the time"],
        "where it goes": [parts],
        "assumed": assumed(assumed_s),
        "goodput": [f"{rates[0]} of {rates[1]} samples/s"],
    }


def _stretches(found: ElasticTimeline) -> Table:
    """A row for each stretch of training."""
    all_of = found.stretches
    columns = [
        Column("from", [format_time_s(one.begin_s) if one.begin_s else "0 s" for one in all_of]),
        Column("hosts", [f"{one.hosts:,}" for one in all_of]),
        Column("workers", [f"{one.workers:,}" for one in all_of]),
        Column("step", [format_time_s(one.step_s) for one in all_of]),
        Column("samples/s", [format_number(one.samples_per_s) for one in all_of]),
        Column("steps", [f"{one.first_step:,} to {one.last_step:,}" for one in all_of]),
    ]
    return Table(columns)


def _changes(changes: Iterable[HostChange]) -> Iterator[str]:
    """A line for each change: its causes, what is lost, and the pause by parts."""
    for number, change in enumerate(changes, start=1):
        lost = (
            f"{counted(change.lost_steps, 'step')} ({format_time_s(change.lost_s)}) lost"
            if change.lost_s > _MIN_S
            else "nothing lost"
        )
        parts = {
            "detection": change.detection_s,
            "new group": change.group_s,
            "start": change.start_s,
            "restore": change.restore_s,
        }
        named = ", ".join(f"{name} {format_time_s(seconds)}" for name, seconds in parts.items() if seconds > _MIN_S)
        pause = f"{format_time_s(change.pause_s)} pause" + (f" ({named})" if named else "") if change.pause_s else "no pause"
        yield f"{number}. {'; '.join(change.causes)}: {lost}, {pause}, then {counted(change.hosts_after, 'host')}"
