"""Plans as sections: the best plan of each number of GPUs, its rivals, its time and memory, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from scaleproof.reports.charts import plan_curves
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.descriptions import plan_sentences as sentences
from scaleproof.reports.descriptions.plan_settings import settings
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.planner.methods import ALL_PARAMETERS
from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow
from scaleproof.simulator.analysis.planner.words import degrees, fits_words, layout
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_count,
    format_energy_J,
    format_mass_kg,
    format_number,
    format_parameters,
    format_percent,
    format_range,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.run.totals import Estimate

_NONE: Final = "–"
_LARGEST_HOLDERS: Final = 3


def describe(plans: Sequence[PlanRecord]) -> Description:
    """The description of the plan of one number of GPUs, or of the best plans of several."""
    planned = [plan for plan in plans if not plan.problem]
    one = planned[0] if len(plans) == len(planned) == 1 else None
    return Description(
        _title(plans),
        sentences.headline(plans),
        list(_summary(plans, one)),
        list(_figures(planned[-1])) if planned else [],
        list(_of_one(one) if one else _of_several(plans, planned)) if planned else [],
    )


def _title(plans: Sequence[PlanRecord]) -> str:
    if not plans:
        return "plans"
    first = plans[0]
    if len(plans) == 1:
        return f"{first.model} on {counted(first.gpus, 'GPU')} of {first.cluster}, global batch {first.samples:,}"
    return f"{first.model} on {first.cluster}, global batch {first.samples:,} at each number of GPUs"


def _summary(plans: Sequence[PlanRecord], one: PlanRecord | None) -> Iterator[str]:
    """Yields how plans were found. one: the only plan."""
    yield from (sentences.nodes_note(plan) for plan in plans if plan.added_nodes and not plan.problem)
    yield from (sentences.input_bound(plan) for plan in plans if plan.input)
    if one:
        yield sentences.search(one)
        yield f"framework{'s' if len(one.frameworks) > 1 else ''}: {sentences.frameworks(one)}"
        yield sentences.optimality(one)
        yield from sentences.risk(one)


def _figures(plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Yields the key figures of a plan."""
    row = plan.best[0]
    gpus = row.gpus or plan.gpus
    per_gpu = format_number(plan.per_second(row.step_time_s) / gpus)
    yield per_gpu, f"{plan.unit}/s per GPU on {counted(gpus, 'GPU')}"
    if row.mfu and row.flops_per_gpu:
        yield format_percent(row.mfu), f"MFU, {row.flops_per_gpu / 1e12:.3g} TFLOP/s per GPU"
    yield format_time_s(row.step_time_s), f"per step ({_between(row)})"
    if row.cost_USD:
        yield f"{row.cost_USD[f'per_million_{plan.unit}']:,.3g} USD", f"per million {plan.unit}"
    fits = "" if row.fits_probability is None else f"; fits with a probability of {fits_words(row.fits_probability)}"
    yield format_bytes(row.memory_bytes), f"memory of the fullest rank, of {format_bytes(plan.device_bytes)}{fits}"


def _of_one(plan: PlanRecord) -> Iterator[Section]:
    """Yields the sections of one number of GPUs."""
    columns, _, notes, groups = _ranking(plan)
    yield _best(Table(columns, notes=notes, groups=groups), notes=list(sentences.comparisons(plan)))
    yield from _nodes([plan])
    yield from _methods([plan])
    yield _time([plan])
    yield _trade_offs([plan], sentences.front(plan))
    yield _memory([plan], sentences.too_large(plan))
    if counts := list(sentences.server_counts(plan)):
        yield Section("Servers", "How many servers", notes=counts)
    yield from _totals([plan])
    yield Section("Scenario", f"No. 1, for a scenario file{_minor_choices(plan.best[0])}", code=plan.fields)


def _of_several(plans: Sequence[PlanRecord], planned: Sequence[PlanRecord]) -> Iterator[Section]:
    """Yields the sections of several numbers of GPUs. planned: those that have a plan."""
    problems = [f"{plan.gpus:,} GPUs: no plan: {plan.problem}" for plan in plans if plan.problem]
    yield Section(
        "Scaling",
        "How the best plan scales",
        tables=[_sizes(planned)],
        charts=lambda: [plan_curves.scaling(planned)],
        notes=problems,
    )
    yield _best(*(_ranking_of_several(plan, is_folded=plan is not planned[-1]) for plan in planned), notes=_sure(planned))
    yield from _nodes(planned)
    yield from _methods(plans)
    yield _time(planned)
    yield _memory(planned)
    yield _trade_offs(planned)
    yield from _totals(planned)


def _nodes(plans: Sequence[PlanRecord]) -> Iterator[Section]:
    """Yields the best plans on each selection of unequal nodes."""
    found = [(plan, row) for plan in plans for row in plan.by_nodes]
    if not found:
        return
    sizes, rows = [plan for plan, _ in found], [row for _, row in found]
    columns = [
        *([Column("up to GPUs", [f"{plan.gpus:,}" for plan in sizes])] if len(plans) > 1 else []),
        Column("nodes, in the order of ranks", [row.configuration["nodes"] for row in rows], is_text=True),
        Column("GPUs", [f"{row.gpus:,}" for row in rows]),
        *_step(rows),
        *_per_gpu(sizes, rows),
        *_fit(sizes, rows),
        Column("best plan", [layout(row.configuration | {"nodes": ""}) for row in rows], is_text=True),
    ]
    notes = [sentence for plan in plans for sentence in sentences.left_out(plan)]
    yield Section("Nodes", "Which nodes", tables=[Table(columns, below=notes)])


def _methods(plans: Sequence[PlanRecord]) -> Iterator[Section]:
    """Yields the best plans with different methods of fine-tuning, where they were compared."""
    found = [(plan, one, one.best) for plan in plans for one in plan.methods if one.best is not None]
    problems = [
        f"{counted(plan.gpus, 'GPU')}, {_method(one.method)}: {one.problem}"
        for plan in plans for one in plan.methods if one.problem
    ]  # fmt: skip
    if not found:
        return
    sizes, rows = [plan for plan, _, _ in found], [row for _, _, row in found]
    columns = [
        *([Column("GPUs", [f"{plan.gpus:,}" for plan in sizes])] if len(plans) > 1 else []),
        Column("trains", [_method(one.method) for _, one, _ in found], is_text=True),
        Column("parameters", [format_parameters(one.trained_parameters) for _, one, _ in found]),
        *_step(rows),
        *_per_gpu(sizes, rows),
        *_fit(sizes, rows),
        Column("best plan", [layout(row.configuration) for row in rows], is_text=True),
    ]
    total = format_parameters(found[0][1].parameters)
    notes = [f"methods train different parts of the {total} parameters: a faster one does not reach the same result"]
    yield Section("Methods", "What is trained", tables=[Table(columns, notes=notes, below=problems)])


def _method(method: str) -> str:
    """'all parameters', or the name of adapters."""
    return "all parameters" if method == ALL_PARAMETERS else method


def _totals(plans: Sequence[PlanRecord]) -> Iterator[Section]:
    """Yields the totals of whole training runs by the best plans, where wanted."""
    found = [(plan, plan.training) for plan in plans if plan.training is not None]
    if not found:
        return
    runs = [training for _, training in found]
    columns = [
        Column("GPUs", [f"{plan.gpus:,}" for plan, _ in found]),
        Column("steps", [f"{one.steps:,}" for one in runs]),
        *_estimates("time", [one.time_s for one in runs], format_time_s),
        *_estimates("GPU-hours", [one.gpu_hours for one in runs], format_count),
        *_estimates("USD", [one.cost_USD for one in runs], format_count),
        *_estimates("energy", [one.energy_J for one in runs], format_energy_J),
        *_estimates("CO2", [one.carbon_kg for one in runs], format_mass_kg),
    ]
    tokens = format_count(runs[0].tokens).replace("G", "B")
    costs = ("price", runs[0].cost_USD), ("power", runs[0].energy_J)
    missing = [f"cluster.node.{field}" for field, one in costs if one is None]
    notes = [f"whole run of {tokens} tokens, without failures, restarts and evaluations"]
    notes += [f"cost, energy and CO2 as far as known; set {' and '.join(missing)}"] if missing else []
    notes += [f"CO2 at {runs[0].carbon_kg_per_J * 3.6e9:.3g} g/kWh (cluster.electricity.carbon)"] if runs[0].carbon_kg else []
    yield Section("Totals", "The whole training run", tables=[Table(columns, notes=notes)])


def _estimates(head: str, estimates: Sequence[Estimate | None], text: Callable[[float], str]) -> Iterator[Column]:
    """Yields columns of totals that are known, with their 90 % intervals."""
    known = [one for one in estimates if one is not None]
    if known:
        ends = [format_range(text(one.low), text(one.high)) for one in known]
        yield Column(head, [text(one.value) for one in known])
        yield Column("90 %", ends, is_text=True, under=head)


def _best(*tables: Table, notes: Sequence[str]) -> Section:
    intro = "Configurations that differ in bucket size, rank order or dispatcher alone are one row, the best of them."
    return Section("Ranking", "The best configurations", intro, tables=tables, notes=notes)


def _trade_offs(plans: Sequence[PlanRecord], brief: Iterable[str] = ()) -> Section:
    return Section("Trade-offs", "Less memory for more time", charts=lambda: [plan_curves.pareto(plans)], brief=list(brief))


def _memory(plans: Sequence[PlanRecord], brief: Iterable[str] = ()) -> Section:
    """What fits. brief: on what does not."""
    tables = [_too_large(plan, brief, is_folded=plan is not plans[-1]) for plan in plans if plan.too_large]
    return Section("Memory", "What fits", _intro(plans), tables=tables, charts=lambda: [run_charts.memory(_bars(plans))])


def _time(plans: Sequence[PlanRecord]) -> Section:
    return Section("Time", "Where the time goes", _intro(plans), charts=lambda: [run_charts.breakdown(_bars(plans))])


def _intro(plans: Sequence[PlanRecord]) -> str:
    return "The best plan of each number of GPUs." if len(plans) > 1 else "The best plan."


def _bars(plans: Sequence[PlanRecord]) -> list[run_charts.Bar]:
    return [run_charts.Bar(f"{plan.gpus:,} GPUs", degrees(plan.best[0].configuration), plan.run) for plan in plans]


def _sure(plans: Sequence[PlanRecord]) -> list[str]:
    """Whether plans are optimal, with their sizes where that differs."""
    sizes: dict[str, list[str]] = {}
    for plan in plans:
        sizes.setdefault(sentences.optimality(plan), []).append(f"{plan.gpus:,}")
    if len(sizes) == 1:
        return list(sizes)
    return [f"{', '.join(gpus)} {'GPU' if gpus == ['1'] else 'GPUs'}: {sentence}" for sentence, gpus in sizes.items()]


def _sizes(plans: Sequence[PlanRecord]) -> Table:
    """The best plan of each number of GPUs."""
    best, first = [plan.best[0] for plan in plans], plans[0]
    rates = [plan.per_second(row.step_time_s) for plan, row in zip(plans, best, strict=True)]
    ends = [
        format_range(*(format_number(plan.per_second(end_s)) for end_s in (row.high_s, row.low_s)))
        for plan, row in zip(plans, best, strict=True)
    ]
    rate = f"{first.unit}/s"
    columns = [
        Column("GPUs", [f"{plan.gpus:,}" for plan in plans]),
        Column(rate, list(map(format_number, rates))),
        Column("90 %", ends, is_text=True, under=rate),
        Column("scaling", [f"{one / rates[0]:.2f}x" for one in rates]),
        Column("step", [format_time_s(row.step_time_s) for row in best]),
        Column("90 %", list(map(_between, best)), under="step", is_detail=True),
        *_per_gpu(plans, best),
    ]
    if all(row.cost_USD for row in best):
        unit = f"per_million_{first.unit}"
        columns.append(Column(f"USD/M {first.unit}", [f"{(row.cost_USD or {})[unit]:,.3g}" for row in best]))
    layouts = [layout(row.configuration) for row in best]
    return Table([*columns, *_fit(plans, best), Column("best plan", layouts, is_text=True, under="GPUs")])


def _ranking(plan: PlanRecord) -> tuple[list[Column], str, list[str], list[tuple[str, int]]]:
    """Columns, heading, notes and groups of the table of the best configurations of one size."""
    best = plan.best
    differing, equal = settings([row.configuration for row in best])
    objectives = [_objective(row, plan) for row in best]
    better = [_NONE if row.best_is_better is None else format_percent(row.best_is_better, 0) for row in best]
    columns = [
        Column("No.", [f"{number}" for number in range(1, len(best) + 1)]),
        *differing,
        *_step(best),
        *([Column(plan.objective, objectives)] if any(objectives) else []),
        *_per_gpu([plan] * len(best), best),
        *_fit([plan] * len(best), best),
        Column(f"P(No. 1 {sentences.is_better(plan.objective)})", better, is_detail=True),
    ]
    groups = [(_group(plan, is_tied), len(list(rows))) for is_tied, rows in groupby(best, lambda row: row.is_tied)]
    return columns, f"{plan.gpus:,} GPUs", [f"all: {equal}"] if equal else [], groups if len(best) > 1 else []


def _group(plan: PlanRecord, is_tied: bool) -> str:
    """The title of configurations that are a tie with the best, or of others."""
    if is_tied:
        return "Best, and ties with it" if plan.ties else "Best"
    return "Slower" if plan.objective == "time" else "Others"


def _ranking_of_several(plan: PlanRecord, is_folded: bool) -> Table:
    """The best configurations of one of several sizes."""
    columns, heading, notes, groups = _ranking(plan)
    margin = sentences.against_runner_up(plan)
    risk = list(sentences.risk(plan))
    brief = [f"{counted(plan.gpus, 'GPU')}: {sentence}" for sentence in filter(None, (margin, *risk))]
    notes = [*risk, *sentences.comparisons(plan), *notes]
    return Table(columns, heading, notes, groups=groups, brief=brief, is_folded=is_folded)


def _step(rows: Sequence[PlanRow]) -> Iterator[Column]:
    """Yields step times with their 90 % intervals."""
    yield Column("step", [format_time_s(row.step_time_s) for row in rows])
    yield Column("90 %", list(map(_between, rows)), is_text=True, under="step")


def _per_gpu(plans: Sequence[PlanRecord], rows: Sequence[PlanRow]) -> Iterator[Column]:
    """Yields throughput per GPU and utilisation, where they are known of all rows."""
    rates = [
        format_number(plan.per_second(row.step_time_s) / (row.gpus or plan.gpus)) for plan, row in zip(plans, rows, strict=True)
    ]
    yield Column(f"{plans[0].unit}/s/GPU", rates)
    if all(row.mfu for row in rows):
        yield Column("MFU", [format_percent(row.mfu or 0.0) for row in rows])
    if all(row.flops_per_gpu for row in rows):
        yield Column("TFLOP/s/GPU", [f"{(row.flops_per_gpu or 0.0) / 1e12:.3g}" for row in rows])


def _fit(plans: Sequence[PlanRecord], rows: Sequence[PlanRow]) -> Iterator[Column]:
    """Yields the memory of the fullest rank, and the probability that it fits, marked where it is below the wanted one."""
    yield Column("memory", [format_bytes(row.memory_bytes) for row in rows])
    if any(row.fits_probability for row in rows):
        marks = [" (risky)" if sentences.is_risky(plan, row) else "" for plan, row in zip(plans, rows, strict=True)]
        words = [fits_words(row.fits_probability) + mark for row, mark in zip(rows, marks, strict=True)]
        yield Column("fits", words)


def _between(row: PlanRow) -> str:
    return format_range(format_time_s(row.low_s), format_time_s(row.high_s))


def _objective(row: PlanRow, plan: PlanRecord) -> str:
    """Objective value of a step, if the objective is not its time."""
    if plan.objective == "energy" and row.energy_J:
        return format_energy_J(row.energy_J["per_step"])
    if plan.objective == "cost" and row.cost_USD:
        return format_USD(row.cost_USD["per_step"])
    if plan.objective == "tokens-per-dollar" and row.cost_USD:
        return f"{1e6 / row.cost_USD['per_million_tokens']:,.0f}"
    return ""


def _too_large(plan: PlanRecord, brief: Iterable[str], is_folded: bool) -> Table:
    """Faster configurations that do not fit."""
    faster = plan.too_large
    count = plan.configurations - plan.fitting
    note = (
        f"{count:,} of {plan.configurations:,} configurations need more than {format_bytes(plan.capacity_bytes)}. The fastest "
        f"of those that need more than {format_bytes(plan.device_bytes)}, by estimate, one for each combination of degrees"
    )
    columns = [
        Column("degrees", [degrees(one.configuration) for one in faster]),
        Column("step, estimated", [format_time_s(one.estimated_s) for one in faster]),
        Column("memory", [format_bytes(one.memory_bytes) for one in faster]),
        Column("largest holders", [_holders(one.holders_bytes) for one in faster], is_text=True),
        Column("configuration", [layout(one.configuration) for one in faster], is_text=True),
    ]
    heading = f"Faster but too large on {plan.gpus:,} GPUs"
    return Table(columns, heading, [note], brief=list(brief), is_folded=is_folded)


def _holders(sizes_bytes: Mapping[str, float]) -> str:
    largest = sorted(sizes_bytes, key=lambda name: -sizes_bytes[name])[:_LARGEST_HOLDERS]
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(sizes_bytes[name])}" for name in largest)


def _minor_choices(row: PlanRow) -> str:
    """' (with bucket 25.0 MiB, rank order tensor-workers-stages)': choices with effect that have no column."""
    config = row.configuration
    parts = [f"bucket {format_bytes(config['bucket_bytes'])}"] if "bucket_bytes" in config and row.sums_buckets else []
    order = [axis for axis in config.get("order", ()) if config.get(axis, 1) > 1]
    parts += [f"rank order {'-'.join(order)}"] if len(order) > 1 else []
    parts += [f"nodes {config['nodes']}, in this order"] if "nodes" in config else []
    return f" (with {', '.join(parts)})" if parts else ""
