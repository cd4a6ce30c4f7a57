"""Elasticities as sections: the effect of 1 % more of each parameter, with a bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.reports.charts.sensitivity import sensitivity_chart
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.sensitivity.elasticity import COST
from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity
from scaleproof.simulator.common.units import counted, format_number, format_percent, format_range
from scaleproof.simulator.run.run import framework_words

# minimum share of the step from which the remainder, or an excess, is printed
_MIN_REST: Final = 0.01
_MAX_EXCESS: Final = 0.05


def describe(found: Sensitivity) -> Description:
    """The description of a sensitivity analysis."""
    ranks, rate = counted(found.ranks, "rank"), format_number(found.samples_per_s)
    title = f"{found.scenario}: {found.strategy} on {ranks}, {rate} samples/s"
    framework = f"framework: {framework_words(found.framework, found.framework_is_default)}"
    return Description(title, next(_verdict(found)), [framework], sections=[elasticities(found, found.scenario)])


def elasticities(found: Sensitivity, words: str) -> Section:
    """The elasticity of each parameter. words: whose they are."""
    return Section(
        "Sensitivity",
        "What would help most",
        "The effect of 1 % more of each quantity of the cluster, the batch and the servers.",
        tables=[_table(found)],
        charts=lambda: [sensitivity_chart(found, words)],
        notes=[*_idle(found), *_verdict(found), *(f"warning: {text}" for text in found.warnings)],
    )


def _table(found: Sensitivity) -> Table:
    rows = [*(_cells(one) for one in found.cluster), *(_cells(one, one.how) for one in found.training)]
    names, now, changes, intervals, costs_at = zip(*rows, strict=True)
    shares = [min(1.0, abs(one.value or 0.0)) for one in (*found.cluster, *found.training)]
    columns = [
        Column("1 % more of", names, is_text=True),
        Column("now", now),
        Column("throughput", changes, shares=shares),
        Column("90 % interval", intervals),
        Column(f"costs {format_percent(COST, 0)} at", costs_at),
    ]
    return Table(columns)


def _cells(one: Elasticity, ends: str = "") -> tuple[str, ...]:
    """Cells of a parameter. ends: the values between which it was varied, in place of an interval."""
    if one.value is None:
        return one.name, one.says, "–", "", ""
    between = "" if one.low is None or one.high is None else format_range(_percent(one.low), _percent(one.high))
    if ends:
        between = f"({ends.removeprefix('from ')})"
    costs_at = "–" if one.costs_at == "any" else one.costs_at or ""
    return one.name, one.says, f"{_percent(one.value)} %", between, costs_at


def _idle(found: Sensitivity) -> Iterator[str]:
    """Why parameters have no effect; those with the same reason share a sentence."""
    reasons: dict[str, list[str]] = {}
    for one in (*found.cluster, *found.training):
        if one.value is None:
            reasons.setdefault(one.how, []).append(one.name)
    yield from (f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _verdict(found: Sensitivity) -> Iterator[str]:
    most = found.largest
    if most is None:
        yield "bottleneck: none of these; the step time depends on none of the parameters above"
        return
    yield f"bottleneck: {most.name}; it accounts for {format_percent(most.share, 0)} of the step"
    if found.rest >= _MIN_REST:
        yield f"{format_percent(found.rest, 0)} of the step depends on none of the hardware's parameters above"
    if found.rest <= -_MAX_EXCESS:
        yield "these add up to more than the step: each parameter changes the order of messages, and throughput with it"


def _percent(value: float) -> str:
    """'+0.61', '-0.02', '0'."""
    text = f"{value:+.2f}"
    return "0" if float(text) == 0 else text
