"""Console text of training along events of hosts: the predicted timeline, and its comparison with a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from scaleproof.commands.text.tables import sections, shares, table
from scaleproof.reports.descriptions.goodput import assumed
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline, HostChange
from scaleproof.simulator.common.units import (
    counted,
    format_change,
    format_interval_s,
    format_number,
    format_percent,
    format_time_s,
)

if TYPE_CHECKING:
    from scaleproof.proof.elastic.events.outcome import ElasticOutcome, TimeComparison

# minimum seconds from which a part of a pause is printed
_MIN_S = 5e-4
_WIDTHS = (15, 9, 20, 9, 7)


def describe(found: ElasticTimeline, assumed_s: Mapping[str, float] = MappingProxyType({})) -> str:
    """Console text of a predicted timeline. assumed_s: times that the scenario does not give, by field."""
    first = found.stretches[0]
    events = counted(sum(len(change.causes) for change in found.changes), "event")
    headline = f"{found.scenario}: {found.strategy} on {counted(first.hosts, 'host')} at first, "
    headline += f"{counted(found.steps, 'step')} with {events}"
    spent = {name: seconds for name, seconds in found.parts_s.items() if seconds > _MIN_S}
    parts = {
        "total": _total(found),
        "effective": [f"{format_percent(found.ratio)} of the time"],
        "where it goes": shares((name, format_time_s(part_s), part_s / found.total_s) for name, part_s in spent.items()),
        "assumed": assumed(assumed_s),
        "goodput": [f"{format_number(found.samples_per_s)} of {format_number(first.samples_per_s)} samples/s"],
    }
    return "\n".join([headline, *_timeline(found), *sections(parts)])


def describe_outcome(outcome: ElasticOutcome) -> str:
    """Console text of a run along events, compared with the prediction."""
    return "\n".join(_outcome_lines(outcome))


def _outcome_lines(outcome: ElasticOutcome) -> Iterator[str]:
    predicted, measured = outcome.predicted, outcome.measured
    hosts = counted(predicted.stretches[0].hosts, "host")
    yield f"{predicted.scenario}: {counted(predicted.steps, 'step')} on {hosts} at first, {outcome.on}"
    yield from (f"  {number}. {_change(change)}" for number, change in enumerate(measured.changes, start=1))
    if not outcome.follows:
        yield "  predicted otherwise:"
        yield from (f"  {number}. {_change(change)}" for number, change in enumerate(predicted.changes, start=1))
    yield from _comparison(outcome.rows)
    yield f"  effective {format_percent(predicted.ratio)} of the time, measured {format_percent(measured.ratio)}"
    yield f"  parameters: {outcome.state.words}"


def _comparison(rows: Iterable[TimeComparison]) -> list[str]:
    """Lines of times, predicted and measured, with the errors of the predictions."""
    cells = [("", "predicted", "90 % between", "measured", "error")]
    for row in rows:
        between = format_interval_s(row.low_s, row.high_s)
        cells.append(
            (row.name, format_time_s(row.predicted_s), between, format_time_s(row.measured_s), format_change(row.error))
        )
    return table(cells, widths=_WIDTHS, indent="  ")


def _total(found: ElasticTimeline) -> Iterator[str]:
    without = "" if found.undisturbed_s is None else f", {format_time_s(found.undisturbed_s)} without events"
    yield f"{format_time_s(found.total_s)}{without}"


def _timeline(found: ElasticTimeline) -> Iterator[str]:
    """A line for each stretch of training, and one for each pause."""
    rows = [("", "from", "hosts", "workers", "step", "samples/s", "steps")]
    for stretch in found.stretches:
        rows.append(
            (
                "",
                format_time_s(stretch.begin_s) if stretch.begin_s else "0 s",
                f"{stretch.hosts:,}",
                f"{stretch.workers:,}",
                format_time_s(stretch.step_s),
                format_number(stretch.samples_per_s),
                f"{stretch.first_step:,} to {stretch.last_step:,}",
            )
        )
    titles, *lines = table(rows, "<><>")
    yield titles
    for line, change in zip(lines, [*found.changes, None], strict=True):
        yield line
        if change is not None:
            yield f"    {_change(change)}"


def _change(change: HostChange) -> str:
    """A change in words: its causes, what is lost, and the pause by parts."""
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
    return f"{'; '.join(change.causes)}: {lost}, {pause}, then {counted(change.hosts_after, 'host')}"
