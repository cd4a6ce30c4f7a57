"""Console text of a comparison: changed fields, effects, step time breakdown, and which scenario is faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.simulator.analysis.compare import TO_TARGET, BreakdownDifference, Comparison, Effect
from scaleproof.simulator.common.units import (
    counted,
    format_change,
    format_change_s,
    format_range,
    format_time_s,
)  # fmt: skip
from scaleproof.simulator.run.run import Run

_MOST_CHANGES: Final = 24
_MAX_VALUE_WIDTH: Final = 22
# changes by at least this factor are printed as factors
_LARGE_FACTOR: Final = 3.0
# minimum share of either step time from which a part is printed
_MIN_SHARE: Final = 5e-4
_CHANGE: Final = ("A", "B", "change", "90 % interval")


def describe(comparison: Comparison) -> str:
    """Console text of a comparison."""
    a, b = comparison.a, comparison.b
    lines = [*_out_of_memory(comparison), _headline("A", a), _headline("B", b), *_unequal_terms(comparison)]
    if comparison.changed:
        rows = [(f"  {change.field}", _cut(change.a), _cut(change.b)) for change in comparison.changed[:_MOST_CHANGES]]
        lines += ["", *table([("what changed", "A", "B"), *rows])]
        more = len(comparison.changed) - len(rows)
        lines += [f"  and {more} more, see --json"] if more > 0 else []
    else:
        lines += ["", "nothing changed"]
    lines += ["", *table([("what it did", *_CHANGE), *map(_effect, comparison.effects)])]
    lines += [f"scaling efficiencies of both are relative to {comparison.baseline}"] if comparison.baseline else []
    parts = [part for part in comparison.parts if max(part.a_s / a.step_time_s, part.b_s / b.step_time_s) >= _MIN_SHARE]
    lines += ["", *table([("where the time goes", *_CHANGE), *map(_part, parts)])]
    return "\n".join([*lines, "", *(line for text in _verdict(comparison) for line in wrapped(text))])


def _out_of_memory(comparison: Comparison) -> Iterator[str]:
    """Which scenarios do not fit; their times are compared as if memory sufficed."""
    for label, run in (("A", comparison.a), ("B", comparison.b)):
        if run.fits is False:
            yield from wrapped(f"{label}: {out_of_memory(run)}; compared as if memory sufficed")


def _headline(label: str, run: Run) -> str:
    return f"{label}  {run.scenario}: {run.strategy} on {counted(run.ranks, 'rank')}; framework: {run.framework_words}"


def _unequal_terms(comparison: Comparison) -> Iterator[str]:
    """A remark on different numbers of GPUs, or samples per step, and how to make them equal."""
    pairs = {"GPUs": comparison.gpus, "samples a step": (comparison.a.samples, comparison.b.samples)}
    differing = ", ".join(f"{a:,} and {b:,} {unit}" for unit, (a, b) in pairs.items() if a != b)
    if differing:
        remedy = f"--gpus {comparison.gpus[0]} compares them on equal GPUs and batch"
        yield from wrapped(f"A and B differ in scale: {differing}; {remedy}")


def _effect(effect: Effect) -> tuple[str, ...]:
    # print the whole line as factors if the change is large
    is_large = max(1 + (change or 0.0) for change in (effect.change, effect.high)) >= _LARGE_FACTOR
    form = _factor if is_large else format_change
    change = "" if effect.change is None else form(effect.change)
    between = "" if effect.low is None or effect.high is None else format_range(form(effect.low), form(effect.high))
    return f"  {effect.label}", *effect.texts(), change, between


def _part(part: BreakdownDifference) -> tuple[str, ...]:
    between = format_range(format_change_s(part.low_s), format_change_s(part.high_s))
    seconds = (format_time_s(part.a_s) if part.a_s else "none", format_time_s(part.b_s) if part.b_s else "none")
    return f"  {part.name.replace('_', ' ')}", *seconds, format_change_s(part.change_s), between


def _verdict(comparison: Comparison) -> Iterator[str]:
    ratio, interval = comparison.ratio, comparison.speedup
    fast = "as fast" if f"{ratio:.3g}" == "1" else f"{ratio:.3g} times as fast"
    yield f"B is {fast} as A (90 % interval {interval.low:.3g}-{interval.high:.3g}); {interval.words()}"
    if comparison.cost_ratio and comparison.per_dollar:
        low, high = 1 / comparison.per_dollar.high, 1 / comparison.per_dollar.low
        costs = f"B costs {comparison.cost_ratio:.3g} times what A costs per {_unit(comparison)}"
        yield f"{costs} (90 % interval {low:.3g}-{high:.3g}); {comparison.per_dollar.words('is cheaper')}"
    for effect in comparison.effects:
        if effect.name == TO_TARGET and effect.a and effect.b:
            longer = f"{effect.b / effect.a:.3g} times as long as A"
            yield f"B reaches its target loss in {longer}, according to the scenarios' convergence models"
    for label, run in (("A", comparison.a), ("B", comparison.b)):
        yield from (f"note on {label}: {text}" for text in run.notes)
        yield from (f"warning for {label}: {text}" for text in run.warnings)


def _unit(comparison: Comparison) -> str:
    return "token" if comparison.a.tokens and comparison.b.tokens else "sample"


def _factor(change: float) -> str:
    """'8.61 x'."""
    return f"{1 + change:.3g} x"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_WIDTH else f"{text[: _MAX_VALUE_WIDTH - 1]}…"
