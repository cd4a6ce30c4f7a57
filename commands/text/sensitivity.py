"""Console text of a sensitivity analysis: the effect of 1 % more of each parameter, with a bar."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from scaleproof.simulator.analysis.sensitivity.sensitivity import Elasticity, Sensitivity
from scaleproof.simulator.common.units import format_number

_LINE: Final = 80
_BAR_WIDTH: Final = 10
# minimum share of the step from which the remainder, or an excess, is printed
_MIN_REST: Final = 0.01
_MAX_EXCESS: Final = 0.05


def describe(found: Sensitivity) -> str:
    """Console text of a sensitivity analysis."""
    run = found.run
    ranks = f"{run.ranks:,} rank{'s' if run.ranks > 1 else ''}"
    lines = [f"{run.scenario}: {run.strategy} on {ranks}, {format_number(run.samples_per_s)} samples/s"]
    lines.append(f"  framework: {run.framework_words}")
    rows = [("1 % more of", "now", "throughput", "90 % between", "")]
    rows += [_row(one) for one in (*found.cluster, *found.training)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, says, value, between, rest in rows:
        cells = f"{name:<{widths[0]}}  {says:>{widths[1]}}  {value:>{widths[2]}}  {between:>{widths[3]}}  {rest}"
        lines.append(f"  {cells}".rstrip())
    return "\n".join([*lines, *(line for text in _verdict(found) for line in textwrap.wrap(text, _LINE))])


def _row(one: Elasticity) -> tuple[str, str, str, str, str]:
    if one.value is None:
        return one.name, one.says, "–", "", one.how
    between = "" if one.low is None or one.high is None else _between(_percent(one.low), _percent(one.high))
    if not one.field.startswith("cluster."):
        between = f"({one.how.removeprefix('from ')})"
    bar = "█" * round(min(1.0, abs(one.value)) * _BAR_WIDTH)
    return one.name, one.says, f"{_percent(one.value)} %", between, bar


def _verdict(found: Sensitivity) -> Iterator[str]:
    most = found.bottleneck
    if most is None:
        yield "bottleneck: none of these; the step time does not depend on the cluster"
        return
    share = f"{abs(most.value or 0.0):.0%}".replace("%", " %")
    yield f"bottleneck: {most.name}; it accounts for {share} of the step"
    if found.rest >= _MIN_REST:
        yield f"{found.rest:.0%} of the step depends on none of the cluster's parameters above".replace("%", " %")
    if found.rest <= -_MAX_EXCESS:
        yield "these add up to more than the step: each parameter changes the order of messages, and throughput with it"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _percent(value: float) -> str:
    """'+0.61', '-0.02', '0'."""
    text = f"{value:+.2f}"
    return "0" if float(text) == 0 else text
