"""Comparisons of two scenarios as sections: changed fields, their effects, the time of each part, and which one is better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.compare import TO_TARGET, BreakdownDifference, Comparison, Effect
from scaleproof.simulator.common.units import counted, format_change, format_change_s, format_range, format_time_s
from scaleproof.simulator.run.run import Run

_MOST_CHANGES: Final = 24
_MOST_LETTERS: Final = 22
# changes by at least this factor are printed as factors
_LARGE_FACTOR: Final = 3.0
# minimum share of either step time from which a part is printed
_MIN_SHARE: Final = 5e-4


def describe(found: Comparison) -> Description:
    """The description of a comparison."""
    runs = {"A": found.a, "B": found.b}
    headlines = [f"{label}  {_headline(run)}" for label, run in runs.items()]
    unfit = [f"{label}: {out_of_memory(run)}" for label, run in runs.items() if run.fits is False]
    problem = "; ".join([*unfit, "compared as if memory sufficed"] if unfit else [])
    summary = [headlines[1], *_unequal_terms(found), *([] if found.changed else ["nothing changed"])]
    return Description(headlines[0], finding(found), summary, sections=list(_sections(found, runs)), problem=problem)


def _headline(run: Run) -> str:
    return f"{run.scenario}: {run.strategy} on {counted(run.ranks, 'rank')}; framework: {run.framework_words}"


def _unequal_terms(found: Comparison) -> Iterator[str]:
    """A remark on different numbers of GPUs, or samples per step, and how to make them equal."""
    pairs = {"GPUs": found.gpus, "samples a step": (found.a.samples, found.b.samples)}
    differing = ", ".join(f"{a:,} and {b:,} {unit}" for unit, (a, b) in pairs.items() if a != b)
    if differing:
        yield f"A and B differ in scale: {differing}; --gpus {found.gpus[0]} compares them on equal GPUs and batch"


def _sections(found: Comparison, runs: dict[str, Run]) -> Iterator[Section]:
    """Yields the sections. runs: by the label of their scenario."""
    if found.changed:
        columns = [
            Column("", [change.field for change in found.changed], is_text=True),
            Column("A", [change.a for change in found.changed], most_letters=_MOST_LETTERS),
            Column("B", [change.b for change in found.changed], most_letters=_MOST_LETTERS),
        ]
        yield Section("Changes", "Changed fields", tables=[Table(columns, "what changed", most_rows=_MOST_CHANGES)])
    baseline = [f"scaling efficiencies of both are relative to {found.baseline}"] if found.baseline else []
    yield Section("Effects", "Their effects", tables=[_differences("what it did", map(effect_texts, found.effects), baseline)])
    least_s = [_MIN_SHARE * run.step_time_s for run in runs.values()]
    parts = [part for part in found.parts if part.a_s >= least_s[0] or part.b_s >= least_s[1]]
    yield Section(
        "Time",
        "Time of each part",
        tables=[_differences("where the time goes", map(_part, parts))],
        charts=lambda: [run_charts.breakdown([run_charts.Bar(label, run.scenario, run) for label, run in runs.items()])],
    )
    remarks = [
        f"{kind} {label}: {text}"
        for label, run in runs.items()
        for kind, texts in (("note on", run.notes), ("warning for", run.warnings))
        for text in texts
    ]
    yield Section("Verdict", "Which is better", brief=[finding(found)], notes=[*_costs(found), *_to_target(found), *remarks])


def _differences(heading: str, rows: Iterator[tuple[str, ...]], below: Sequence[str] = ()) -> Table:
    """A table of both scenarios. rows: a name, values of A and B, the change and its 90 % interval."""
    names, *values = zip(*rows, strict=True)
    heads = ("A", "B", "change", "90 % interval")
    columns = [Column("", names, is_text=True), *(Column(head, cells) for head, cells in zip(heads, values, strict=True))]
    return Table(columns, heading, below=below)


def effect_texts(effect: Effect) -> tuple[str, ...]:
    """The name, the values of A and B, the change and its 90 % interval."""
    # the whole row has factors if the change is large
    is_large = max(1 + (change or 0.0) for change in (effect.change, effect.high)) >= _LARGE_FACTOR
    form: Callable[[float], str] = _factor if is_large else format_change
    change = "" if effect.change is None else form(effect.change)
    between = "" if effect.low is None or effect.high is None else format_range(form(effect.low), form(effect.high))
    return effect.label, *effect.texts(), change, between


def _factor(change: float) -> str:
    """'8.61 x'."""
    return f"{1 + change:.3g} x"


def _part(part: BreakdownDifference) -> tuple[str, ...]:
    between = format_range(format_change_s(part.low_s), format_change_s(part.high_s))
    sides = (format_time_s(side_s) if side_s else "none" for side_s in (part.a_s, part.b_s))
    return part.name.replace("_", " "), *sides, format_change_s(part.change_s), between


def finding(found: Comparison) -> str:
    """Which scenario is faster, and how surely."""
    fast = "as fast" if f"{found.ratio:.3g}" == "1" else f"{found.ratio:.3g} times as fast"
    low, high = found.throughput_ratio_interval
    return f"B is {fast} as A (90 % interval {low:.3g}-{high:.3g}); {found.speedup.words()}"


def _costs(found: Comparison) -> Iterator[str]:
    if found.cost_ratio and found.cost_ratio_interval and found.per_dollar:
        low, high = found.cost_ratio_interval
        unit = "token" if found.a.tokens and found.b.tokens else "sample"
        costs = f"B costs {found.cost_ratio:.3g} times what A costs per {unit} (90 % interval {low:.3g}-{high:.3g})"
        yield f"{costs}; {found.per_dollar.words('is cheaper')}"


def _to_target(found: Comparison) -> Iterator[str]:
    for effect in found.effects:
        if effect.name == TO_TARGET and effect.a and effect.b:
            longer = f"{effect.b / effect.a:.3g} times as long as A"
            yield f"B reaches its target loss in {longer}, according to the scenarios' convergence models"
