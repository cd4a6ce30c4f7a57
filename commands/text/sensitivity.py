"""Console text of a sensitivity analysis: the effect of 1 % more of each parameter, with a bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.commands.text.tables import bar, table, wrapped
from scaleproof.simulator.analysis.sensitivity.elasticity import COST
from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity
from scaleproof.simulator.common.units import counted, format_number, format_percent, format_range

_BAR_WIDTH: Final = 10
# minimum share of the step from which the remainder, or an excess, is printed
_MIN_REST: Final = 0.01
_MAX_EXCESS: Final = 0.05


def describe(found: Sensitivity) -> str:
    """Console text of a sensitivity analysis."""
    run = found.run
    lines = [f"{run.scenario}: {run.strategy} on {counted(run.ranks, 'rank')}, {format_number(run.samples_per_s)} samples/s"]
    lines.append(f"  framework: {run.framework_words}")
    titles = ("1 % more of", "now", "throughput", "90 % interval", f"costs {format_percent(COST, 0)} at", "")
    lines += table([titles, *map(_row, found.cluster), *(_row(one, one.how) for one in found.training)], "<>>>><", indent="  ")
    sentences = [*_verdict(found), *(f"warning: {text}" for text in run.warnings)]
    return "\n".join([*lines, *(line for text in sentences for line in wrapped(text))])


def _row(one: Elasticity, ends: str = "") -> tuple[str, str, str, str, str, str]:
    """Cells of a parameter. ends: the values between which it was varied, in place of an interval."""
    if one.value is None:
        return one.name, one.says, "–", "", "", one.how
    between = "" if one.low is None or one.high is None else format_range(_percent(one.low), _percent(one.high))
    if ends:
        between = f"({ends.removeprefix('from ')})"
    costs_at = "–" if one.costs_at == "any" else one.costs_at or ""
    return one.name, one.says, f"{_percent(one.value)} %", between, costs_at, bar(min(1.0, abs(one.value)), _BAR_WIDTH)


def _verdict(found: Sensitivity) -> Iterator[str]:
    most = found.bottleneck
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
