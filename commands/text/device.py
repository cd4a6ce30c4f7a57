"""Console text of a device: its facts, and the rates that its kernels reach by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.common.units import format_count, format_percent

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.device_facts import Fact
    from scaleproof.simulator.analysis.device_rates import Rate, RateLine
    from scaleproof.simulator.cluster.device.device import Device

_WIDTHS: Final = (21,)
# Sustained rates are shown where one of them is below this share of that in a burst.
_SAME: Final = 0.97


def describe(device: Device, facts: Sequence[Fact], products: Sequence[RateLine], attentions: Sequence[RateLine]) -> str:
    """The device as text."""
    lines = [f"{device.name}{f': {device.description}' if device.description else ''}"]
    lines += table([("what", "is", "from"), *facts], "<", _WIDTHS, indent="  ")
    lines += ["", "matrix products m = n = k in a short burst, FLOP/s and share of the peak", *_rates(device, products)]
    if attentions:
        from scaleproof.simulator.analysis.device_rates import HEADS, TOKENS, WIDTH

        what = f"causal attention forward over {TOKENS:,} tokens, {HEADS} heads of {WIDTH}, by tokens of a sequence"
        lines += ["", what, *_rates(device, attentions)]
    if device.source:
        lines += ["", *wrapped(" ".join(device.source.split()), "source: ")]
    return "\n".join(lines)


def _rates(device: Device, lines: Sequence[RateLine]) -> list[str]:
    """A row for each line in a burst, and below it the sustained rates where they differ; equal lines share a row."""
    rows = [("", *(f"{rate.size:,.0f}" for rate in lines[0].rates))]
    names: dict[tuple[Rate, ...], list[str]] = {}
    for line in lines:
        names.setdefault(line.rates, []).append(line.name)
    for line in lines:
        if line.name != names[line.rates][0]:
            continue
        peak_flops = device.peak_flops[line.precision]
        rows.append((", ".join(names[line.rates]), *(_cell(rate.burst, peak_flops) for rate in line.rates)))
        if any(rate.sustained < _SAME * rate.burst for rate in line.rates):
            rows.append(("  sustained", *(_cell(rate.sustained, peak_flops) for rate in line.rates)))
    return table(rows, "<>", _WIDTHS, indent="  ")


def _cell(flops: float, peak_flops: float) -> str:
    return f"{format_count(flops)} {format_percent(flops / peak_flops, 0)}"
