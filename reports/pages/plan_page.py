"""The page of plans: the best plan of each number of GPUs, its rivals, its time and memory, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.reports.charts import plan_curves
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.pages.evidence_section import evidence_section
from scaleproof.reports.pages.plan_text import (
    Settings,
    against_runner_up,
    fits_words,
    headline,
    is_better,
    nodes_note,
    optimality,
    risk,
    tie_sentence,
)
from scaleproof.reports.pages.sections import Page, Section, Sources, pictured
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.text import rate, spaced
from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow
from scaleproof.simulator.analysis.planner.sizes import best_file, read_plans
from scaleproof.simulator.analysis.planner.words import degrees, layout
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import (
    format_bytes,
    format_percent,
    format_range,
    format_short,
    format_short_range,
    format_time_s,
)
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario.load import load

_NONE: Final = "–"
_LARGEST_HOLDERS: Final = 3


class Cell(NamedTuple):
    """A cell of a table. small: a second line."""

    text: str
    small: str = ""


class Rows(NamedTuple):
    """Rows of a table below a title, each with its name and its cells."""

    title: str
    rows: Sequence[tuple[Cell, Sequence[Cell]]]


class Table(NamedTuple):
    """A table with a heading and text above it. words: number of last columns with text instead of numbers. folded: whether it
    is shown only on demand."""

    heading: str
    text: str
    heads: Sequence[str]
    groups: Sequence[Rows]
    words: int = 0
    folded: bool = False


class _Column(NamedTuple):
    """A column with a quantity of a configuration."""

    head: str
    cell: Callable[[PlanRecord, PlanRow], Cell]


def page(folder: Path) -> Page:
    """The page of a folder of plans."""
    plans, notes = read_plans(folder)
    planned = [plan for plan in plans if not plan.problem]
    notes += [f"{plan.gpus:,} GPUs: no plan: {plan.problem}" for plan in plans if plan.problem]
    notes += [nodes_note(plan) for plan in planned if plan.added_nodes]
    first = plans[0] if plans else None
    return Page(
        " · ".join(["scaleproof", *([f"plan {first.model}", first.cluster] if first else [])]),
        headline(plans) if plans else "Nothing to show: no plan in this folder can be read",
        _lede(planned),
        _facts(planned[-1]) if planned else [],
        notes,
        [section for section in _sections(planned) if section.pictures or section.before] + _evidence(folder, planned),
        _sheets(planned),
        _sources(planned),
        is_empty=not planned,
    )


def _sections(plans: Sequence[PlanRecord]) -> Iterator[Section]:
    """Yields the sections of the plans; those for which there are no data are empty."""
    if not plans:
        return
    runs = [run_charts.Bar(f"{plan.gpus:,} GPUs", degrees(plan.best[0].configuration), plan.run) for plan in plans]
    several = len(plans) > 1
    yield Section(
        "scaling",
        "Scaling",
        "How the best plan scales" if several else "The best plan",
        pictures=pictured(plan_curves.scaling(plans)),
        before="plan.html",
        data={"tables": [_sizes(plans)]},
    )
    yield Section(
        "ranking",
        "Ranking",
        "The best configurations",
        "Configurations that differ in bucket size or rank order alone are one row, the best of them.",
        before="plan.html",
        data={"tables": [_ranking(plan, folded=plan is not plans[-1]) for plan in reversed(plans)]},
    )
    yield Section(
        "time", "Time", "Where the time goes", "The best plan of each number of GPUs.", pictured(run_charts.breakdown(runs))
    )
    too_large = [table for plan in reversed(plans) for table in _too_large(plan, folded=plan is not plans[-1])]
    yield Section(
        "memory",
        "Memory",
        "What fits",
        "The best plan of each number of GPUs.",
        pictured(run_charts.memory(runs)),
        after="plan.html" if too_large else "",
        data={"tables": too_large},
    )
    yield Section("pareto", "Trade-offs", "Less memory for more time", "", pictured(plan_curves.pareto(plans)))


def _evidence(folder: Path, plans: Sequence[PlanRecord]) -> list[Section]:
    """Published runs similar to the best plan of the most GPUs; nothing where its scenario cannot be read."""
    if not plans:
        return []
    try:
        return [evidence_section([(f"{plans[-1].gpus:,} GPUs", load(folder / best_file(plans[-1].gpus)))])]
    except ScaleproofError:
        return []


def _lede(plans: Sequence[PlanRecord]) -> str:
    if not plans:
        return ""
    last = plans[-1]
    where = " at each number of GPUs" if len(plans) > 1 else ""
    sentences = [
        f"{last.model} on {last.cluster}, global batch {last.samples:,}{where}",
        _sentence(optimality(last)),
        *map(_sentence, risk(last)),
        *tie_sentence(last),
    ]
    return " ".join(f"{sentence}." for sentence in sentences)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _facts(plan: PlanRecord) -> list[tuple[str, str]]:
    """The key figures of a plan, as (number, meaning)."""
    row = plan.best[0]
    per_gpu = rate(plan.per_second(row.step_time_s) / plan.gpus)
    facts = [(per_gpu, f"{plan.unit}/s per GPU on {plan.gpus:,} GPUs")]
    if row.mfu and row.flops_per_gpu:
        facts.append((format_percent(row.mfu), f"MFU, {row.flops_per_gpu / 1e12:.3g} TFLOP/s per GPU"))
    facts.append((format_time_s(row.step_time_s), f"per step ({_between(row)})"))
    if row.cost_USD:
        facts.append((f"{row.cost_USD[f'per_million_{plan.unit}']:,.3g} USD", f"per million {plan.unit}"))
    fits = "" if row.fits_probability is None else f"; fits with a probability of {fits_words(row)}"
    facts.append((format_bytes(row.memory_bytes), f"memory of the fullest rank, of {format_bytes(plan.device_bytes)}{fits}"))
    return facts


def _quantities(plans: Sequence[PlanRecord]) -> Iterator[_Column]:
    """Yields columns with the quantities that are known of all plans."""
    unit, rows = plans[0].unit, [row for plan in plans for row in plan.best]
    yield _Column("Step", lambda _, row: Cell(format_time_s(row.step_time_s), _between(row)))
    yield _Column(
        f"{'Tokens' if unit == 'tokens' else 'Samples'}/s/GPU",
        lambda plan, row: Cell(rate(plan.per_second(row.step_time_s) / plan.gpus)),
    )
    if all(row.mfu for row in rows):
        yield _Column("MFU", lambda _, row: Cell(format_percent(row.mfu or 0.0)))
    if all(row.flops_per_gpu for row in rows):
        yield _Column("TFLOP/s/GPU", lambda _, row: Cell(f"{(row.flops_per_gpu or 0.0) / 1e12:.3g}"))
    yield _Column("Memory", lambda _, row: Cell(format_bytes(row.memory_bytes)))
    if any(row.fits_probability for row in rows):
        yield _Column("Fits", lambda _, row: Cell(fits_words(row)))


def _between(row: PlanRow) -> str:
    return format_range(format_time_s(row.low_s), format_time_s(row.high_s))


def _sizes(plans: Sequence[PlanRecord]) -> Table:
    """The best plan of each number of GPUs."""
    first, unit = plans[0], plans[0].unit
    first_rate = first.per_second(first.best[0].step_time_s)

    def throughput(plan: PlanRecord, row: PlanRow) -> Cell:
        ends = plan.per_second(row.high_s), plan.per_second(row.low_s)
        return Cell(format_short(plan.per_second(row.step_time_s)), format_short_range(*ends))

    columns = [_Column(f"{unit}/s".capitalize(), throughput)]
    if len(plans) > 1:
        columns.append(
            _Column(f"× {first.gpus:,} GPUs", lambda plan, row: Cell(f"{plan.per_second(row.step_time_s) / first_rate:.2f}"))
        )
    columns += _quantities(plans)
    if all(plan.best[0].cost_USD for plan in plans):
        columns.append(_Column(f"USD per M {unit}", lambda _, row: Cell(f"{(row.cost_USD or {})[f'per_million_{unit}']:,.3g}")))
    rows = [
        (Cell(f"{plan.gpus:,}", layout(plan.best[0].configuration)), [column.cell(plan, plan.best[0]) for column in columns])
        for plan in plans
    ]
    heads = ["GPUs", *(column.head for column in columns)]
    return Table("", "", heads, [Rows("", rows)])


def _ranking(plan: PlanRecord, folded: bool) -> Table:
    """The best configurations of one size; ties with the best are a group."""
    settings = Settings.of([row.configuration for row in plan.best])
    columns = list(_quantities([plan]))

    def cells(number: int) -> tuple[Cell, list[Cell]]:
        row = plan.best[number]
        chosen = [Cell(column[number]) for column in settings.differing.values()]
        better = Cell(_NONE if row.best_is_better is None else format_percent(row.best_is_better, 0))
        return Cell(f"{number + 1}"), [*chosen, *(column.cell(plan, row) for column in columns), better]

    tied = [number for number, row in enumerate(plan.best) if row.is_tied]
    others = [number for number, row in enumerate(plan.best) if not row.is_tied]
    title = "Best" if len(tied) == 1 else "Best, and ties with it"
    groups = [Rows(title if len(plan.best) > 1 else "", [cells(number) for number in tied])]
    title = "Slower" if plan.objective == "time" else "Others"
    groups += [Rows(title, [cells(number) for number in others])] if others else []
    sentences = [optimality(plan), *risk(plan), *tie_sentence(plan), *filter(None, [against_runner_up(plan)])]
    sentences += [f"All rows: {settings.equal_words}"] if settings.equal else []
    heads = ["No.", *settings.differing, *(column.head for column in columns), f"P(No. 1 {is_better(plan.objective)})"]
    text = " ".join(f"{_sentence(sentence)}." for sentence in sentences)
    return Table(f"{plan.gpus:,} GPUs", text, heads, groups, folded=folded)


def _too_large(plan: PlanRecord, folded: bool) -> Iterator[Table]:
    """Yields the table of faster configurations that do not fit, if there are any."""
    if not plan.too_large:
        return

    def holders(sizes: dict[str, float]) -> str:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_LARGEST_HOLDERS]
        return ", ".join(f"{spaced(name)} {format_bytes(sizes[name])}" for name in largest)

    rows = [
        (
            Cell(degrees(one.configuration)),
            [
                Cell(format_time_s(one.estimated_s)),
                Cell(format_bytes(one.memory_bytes)),
                Cell(holders(one.holders_bytes)),
                Cell(layout(one.configuration)),
            ],
        )
        for one in plan.too_large
    ]
    count = plan.configurations - plan.fitting
    text = (
        f"{count:,} of {plan.configurations:,} configurations need more than {format_bytes(plan.capacity_bytes)}. The fastest "
        f"of those that need more than {format_bytes(plan.device_bytes)}, by estimate, one for each combination of degrees:"
    )
    heads = ["Degrees", "Step, estimated", "Memory", "Largest holders", "Configuration"]
    yield Table(f"Faster but too large on {plan.gpus:,} GPUs", text, heads, [Rows("", rows)], words=2, folded=folded)


def _sheets(plans: Sequence[PlanRecord]) -> dict[str, str]:
    """Tables as CSV, in SI units."""
    import pandas as pd

    rows, front = [], []
    for plan in plans:
        for number, row in enumerate(plan.best, start=1):
            plain = row.model_dump(exclude={"configuration", "breakdown_s", "cost_USD", "energy_J"})
            cost = {f"cost_USD_{unit}": amount for unit, amount in (row.cost_USD or {}).items()}
            rows.append({"gpus": plan.gpus, "number": number} | plain | cost | _plain(row.configuration))
        for point in plan.front:
            front.append({"gpus": plan.gpus} | point.model_dump(exclude={"configuration"}) | _plain(point.configuration))
    return {"ranking.csv": csv_tables.frame_csv(pd.DataFrame(rows)), "pareto.csv": csv_tables.frame_csv(pd.DataFrame(front))}


def _plain(configuration: dict[str, object]) -> dict[str, object]:
    """A configuration with lists as text."""
    return {name: " ".join(value) if isinstance(value, list) else value for name, value in configuration.items()}


def _sources(plans: Sequence[PlanRecord]) -> Sources:
    if not plans:
        return Sources()
    first = plans[0]
    facts = [("Scenario", first.scenario), ("Model", first.model), ("Cluster", first.cluster)]
    facts += origins.frameworks(framework_words(name, plan.framework_is_default) for plan in plans for name in plan.frameworks)
    facts += [("Objective", spaced(first.objective)), ("Planned with", f"scaleproof {first.version}"), origins.made_with()]
    files = {best_file(plan.gpus): plan.scenario_yaml for plan in plans}
    return Sources(facts, files, [f"scaleproof predict {name}" for name in files])
