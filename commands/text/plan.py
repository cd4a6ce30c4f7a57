"""Console text of plans: the best configurations of one number of GPUs, or the best plan of each of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from scaleproof.commands.text.tables import table, wrapped
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
from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow
from scaleproof.simulator.analysis.planner.words import degrees, layout
from scaleproof.simulator.common.units import (
    format_bytes,
    format_change_s,
    format_energy_J,
    format_number,
    format_percent,
    format_range,
    format_time_s,
    format_USD,
)

# Number of points of the Pareto front that are printed.
_MAX_FRONT: Final = 6
# Minimum share of a difference from which a cause is printed.
_MIN_SHARE: Final = 0.01

# Columns of a table by their heads.
_Columns = dict[str, list[str]]


def describe(plans: Sequence[PlanRecord]) -> str:
    """Console text of the plan of one number of GPUs, or of several."""
    return "\n".join(_one(plans[0]) if len(plans) == 1 else _several(plans))


def plain(plans: Sequence[PlanRecord]) -> dict[str, Any]:
    """Plans as data for JSON, in SI units."""
    return {"plans": [plan.model_dump() for plan in plans]}


def _one(plan: PlanRecord) -> Iterator[str]:
    yield f"{plan.model} on {plan.gpus:,} GPUs of {plan.cluster}, global batch {plan.samples:,}"
    if plan.added_nodes:
        yield nodes_note(plan)
    sure = "" if plan.fits is None else f" with a probability of {format_percent(plan.fits, 0)}"
    room = f"up to {format_bytes(plan.capacity_bytes)} of {format_bytes(plan.device_bytes)}"
    yield from wrapped(
        f"{plan.configurations:,} configurations estimated in {format_time_s(plan.estimate_seconds)}, {plan.fitting:,} fit"
        f"{sure} ({room}); {plan.replayed} replayed and {plan.predicted} predicted in {format_time_s(plan.search_seconds)}"
    )
    yield _frameworks(plan)
    yield from wrapped(optimality(plan))
    for sentence in risk(plan):
        yield from wrapped(sentence)
    yield ""
    settings = Settings.of([row.configuration for row in plan.best])
    if settings.equal:
        yield from wrapped(f"all: {settings.equal_words}")
    yield from _printed(_ranking(plan, settings))
    yield ""
    yield from _next(plan)
    yield from _front(plan)
    yield from _too_large(plan)
    yield from _server_counts(plan)
    yield ""
    yield f"No. 1, for a scenario file{_minor_choices(plan.best[0])}:"
    yield from (f"  {line}" for line in plan.fields)


def _several(plans: Sequence[PlanRecord]) -> Iterator[str]:
    first = plans[0]
    yield f"{first.model} on {first.cluster}, global batch {first.samples:,} at each number of GPUs"
    yield from (nodes_note(plan) for plan in plans if plan.added_nodes)
    yield ""
    planned = [plan for plan in plans if not plan.problem]
    yield from _printed(_sizes(planned))
    yield ""
    for plan in plans:
        if plan.problem:
            yield from wrapped(f"{plan.gpus:,} GPUs: no plan: {plan.problem}")
    for plan in planned:
        for sentence in filter(None, (against_runner_up(plan), *risk(plan))):
            yield from wrapped(f"{plan.gpus:,} GPUs: {sentence}")
    sentences = dict.fromkeys(map(optimality, planned))
    for sentence in sentences:
        sizes = ", ".join(f"{plan.gpus:,}" for plan in planned if optimality(plan) == sentence)
        yield from wrapped(f"{sizes} GPUs: {sentence}" if len(sentences) > 1 else sentence)
    yield ""
    yield from wrapped(headline(plans))


def _frameworks(plan: PlanRecord) -> str:
    default = ", by default" if plan.framework_is_default else ""
    return f"framework{'s' if len(plan.frameworks) > 1 else ''}: {', '.join(plan.frameworks)}{default}"


def _sizes(plans: Sequence[PlanRecord]) -> _Columns:
    """The columns of several sizes."""
    best, first = [plan.best[0] for plan in plans], plans[0]
    rates = [plan.per_second(row.step_time_s) for plan, row in zip(plans, best, strict=True)]
    columns = {
        "GPUs": [f"{plan.gpus:,}" for plan in plans],
        f"{first.unit}/s": [format_number(rate) for rate in rates],
        "90 %": [
            format_range(*(format_number(plan.per_second(end_s)) for end_s in (row.high_s, row.low_s)))
            for plan, row in zip(plans, best, strict=True)
        ],
        "scaling": [f"{rate / rates[0]:.2f}x" for rate in rates],
        "step": [format_time_s(row.step_time_s) for row in best],
    }
    columns |= _per_gpu(plans, best)
    if all(row.cost_USD for row in best):
        unit = f"per_million_{first.unit}"
        columns[f"USD/M {first.unit}"] = [f"{(row.cost_USD or {})[unit]:,.3g}" for row in best]
    return columns | _memory(best) | {"best plan": [layout(row.configuration) for row in best]}


def _ranking(plan: PlanRecord, settings: Settings) -> _Columns:
    """The columns of the best configurations of one size."""
    best = plan.best
    columns = {"No.": [f"{number}" for number in range(1, len(best) + 1)]}
    columns |= settings.differing
    columns["step"] = [format_time_s(row.step_time_s) for row in best]
    columns["90 %"] = [format_range(format_time_s(row.low_s), format_time_s(row.high_s)) for row in best]
    if any(amounts := [_objective(row, plan) for row in best]):
        columns[plan.objective] = amounts
    columns |= _per_gpu([plan] * len(best), best)
    return columns | _memory(best)


def _memory(rows: Sequence[PlanRow]) -> _Columns:
    """Memory of the fullest rank, and the probability that it fits."""
    columns = {"memory": [format_bytes(row.memory_bytes) for row in rows]}
    return columns | ({"fits": [fits_words(row) for row in rows]} if any(row.fits_probability for row in rows) else {})


def _per_gpu(plans: Sequence[PlanRecord], rows: Sequence[PlanRow]) -> _Columns:
    """Throughput per GPU and utilisation."""
    columns: _Columns = {}
    unit = plans[0].unit
    columns[f"{unit}/s/GPU"] = [
        format_number(plan.per_second(row.step_time_s) / plan.gpus) for plan, row in zip(plans, rows, strict=True)
    ]
    if all(row.mfu for row in rows):
        columns["MFU"] = [format_percent(row.mfu or 0.0) for row in rows]
    if all(row.flops_per_gpu for row in rows):
        columns["TFLOP/s/GPU"] = [f"{(row.flops_per_gpu or 0.0) / 1e12:.3g}" for row in rows]
    return columns


def _printed(columns: _Columns) -> list[str]:
    words = ("recompute", "schedule", "SP", "servers", "framework", "best plan", "90 %")
    align = "".join("<" if name in words else ">" for name in columns)
    return table(zip(*([name, *column] for name, column in columns.items()), strict=True), align)


def _objective(row: PlanRow, plan: PlanRecord) -> str:
    """Objective value of a step, if the objective is not its time."""
    if plan.objective == "energy" and row.energy_J:
        return format_energy_J(row.energy_J["per_step"])
    if plan.objective == "cost" and row.cost_USD:
        return format_USD(row.cost_USD["per_step"])
    if plan.objective == "tokens-per-dollar" and row.cost_USD:
        return f"{1e6 / row.cost_USD['per_million_tokens']:,.0f}"
    return ""


def _next(plan: PlanRecord) -> Iterator[str]:
    """Why No. 2 is slower, what is a tie, and the best other degrees."""
    if len(plan.best) > 1:
        first, second = plan.best[:2]
        more_s = second.step_time_s - first.step_time_s
        parts = {cause: second.breakdown_s[cause] - seconds for cause, seconds in first.breakdown_s.items()}
        causes = [
            f"{cause.replace('_', ' ')} {format_change_s(seconds)}"
            for cause, seconds in sorted(parts.items(), key=lambda part: -abs(part[1]))
            if abs(seconds) >= _MIN_SHARE * abs(more_s)
        ]
        # a difference that two decimals show
        if more_s >= 5e-5 * first.step_time_s:
            yield from wrapped(f"No. 2 takes {format_percent(more_s / first.step_time_s, 2)} longer: {', '.join(causes)}")
        assert second.best_is_better is not None
        probability = format_percent(second.best_is_better, 0)
        yield f"No. 1 {is_better(plan.objective)} than No. 2 with a probability of {probability}"
    yield from tie_sentence(plan)
    if margin := against_runner_up(plan):
        yield margin


def _front(plan: PlanRecord) -> Iterator[str]:
    """The Pareto front of estimated step time and memory."""
    front = plan.front
    if len(front) < 2:
        return
    step = max(1, -(-len(front) // _MAX_FRONT))
    shown = [*front[::step], *([front[-1]] if (len(front) - 1) % step else [])]
    parts = [f"{format_time_s(point.estimated_s)} with {format_bytes(point.memory_bytes)}" for point in shown]
    yield from wrapped(f"Pareto front, estimated time vs. memory ({len(front)}): {', '.join(parts)}")


def _too_large(plan: PlanRecord) -> Iterator[str]:
    """The fastest configuration that does not fit."""
    if plan.too_large:
        one = plan.too_large[0]
        holder = max(one.holders_bytes, key=lambda name: one.holders_bytes[name])
        yield from wrapped(
            f"does not fit: {degrees(one.configuration)} would take {format_time_s(one.estimated_s)} (estimated) but needs "
            f"{format_bytes(one.memory_bytes)}, {format_bytes(one.holders_bytes[holder])} of it {holder.replace('_', ' ')}"
        )


def _server_counts(plan: PlanRecord) -> Iterator[str]:
    """The shortest estimated step time by placement and number of servers."""
    counts = sorted(plan.server_counts, key=lambda count: count.placement, reverse=True)
    for placement, group in groupby(counts, key=lambda count: count.placement):
        steps = ", ".join(f"{count.servers}: {format_time_s(count.estimated_s)}" for count in group)
        yield f"a step by number of {placement} servers (estimated): {steps}"


def _minor_choices(row: PlanRow) -> str:
    """' (with bucket 25.0 MiB, rank order tensor-workers-stages)': choices with effect that have no column."""
    config = row.configuration
    parts = [f"bucket {format_bytes(config['bucket_bytes'])}"] if "bucket_bytes" in config and row.sums_buckets else []
    order = [axis for axis in config.get("order", ()) if config.get(axis, 1) > 1]
    parts += [f"rank order {'-'.join(order)}"] if len(order) > 1 else []
    return f" (with {', '.join(parts)})" if parts else ""
