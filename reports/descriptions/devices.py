"""A device as sections: its facts, and the rates that its kernels reach by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.device_facts import DeviceRecord
from scaleproof.simulator.analysis.device_rates import HEADS, TOKENS, WIDTH, Rate, RateLine
from scaleproof.simulator.common.units import format_count, format_percent

# Sustained rates are shown where one of them is below this share of that in a burst.
_SAME: Final = 0.97


def describe(found: DeviceRecord) -> Description:
    """The description of a device."""
    rows = zip(*((fact.what, fact.value, fact.origin) for fact in found.facts), strict=True)
    facts = [Column(head, cells, is_text=True) for head, cells in zip(("what", "is", "from"), rows, strict=True)]
    products = "matrix products m = n = k in a short burst, FLOP/s and share of the peak"
    attention = f"causal attention forward over {TOKENS:,} tokens, {HEADS} heads of {WIDTH}, by tokens of a sequence"
    sections = [Section("Facts", "What is known", tables=[Table(facts)]), _rates("Products", products, found.products)]
    sections += [_rates("Attention", attention, found.attention)] if found.attention else []
    sections += [Section("Source", "source", notes=[" ".join(found.source.split())], is_headed=True)] if found.source else []
    return Description(": ".join(filter(None, (found.name, found.description))), sections=sections)


def _rates(name: str, heading: str, lines: Sequence[RateLine]) -> Section:
    """A row for each line in a burst, and below it the sustained rates where they differ; equal lines share a row."""
    names: dict[tuple[Rate, ...], list[str]] = {}
    for line in lines:
        names.setdefault(line.rates, []).append(line.name)
    rows = []
    for line in lines:
        if line.name != names[line.rates][0]:
            continue
        rows.append((", ".join(names[line.rates]), *(_cell(rate.burst, line) for rate in line.rates)))
        if any(rate.sustained < _SAME * rate.burst for rate in line.rates):
            rows.append(("  sustained", *(_cell(rate.sustained, line) for rate in line.rates)))
    first, *others = zip(*rows, strict=True)
    sizes = [f"{rate.size:,.0f}" for rate in lines[0].rates]
    columns = [Column("", first, is_text=True), *(Column(size, cells) for size, cells in zip(sizes, others, strict=True))]
    return Section(name, heading, tables=[Table(columns)], is_headed=True)


def _cell(flops: float, line: RateLine) -> str:
    return f"{format_count(flops)} {format_percent(flops / line.peak_flops, 0)}"
