"""Charts of plans: the best plan of each number of GPUs, and the Pareto front of time and memory of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BLUE, GREY, INK, VERMILLION
from scaleproof.reports.text import percent
from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common.units import format_bytes, format_short, format_short_range, format_time_s

_GIB: Final = 2.0**30
# Ratio of the largest and the smallest number of GPUs from which the axis is logarithmic.
_FAR: Final = 8
_BEST: Final = "best plan"
_LINEAR: Final = "linear scaling"


def scaling(plans: Sequence[PlanRecord]) -> Chart | None:
    """Throughput, utilisation and cost of the best plans against the number of GPUs; None for one size."""
    if len(plans) < 2:
        return None
    unit = plans[0].unit
    quantities: dict[str, tuple[str, Callable[[PlanRecord, float], float]]] = {
        f"{unit}/s": (f"{unit}/s", lambda plan, step_s: plan.per_second(step_s)),
        f"{unit}/s/GPU": (f"{unit}/s per GPU", lambda plan, step_s: plan.per_second(step_s) / plan.gpus),
    }
    if all(plan.best[0].mfu for plan in plans):
        quantities["MFU"] = "model FLOPs utilisation", lambda plan, step_s: _at(plan, step_s, plan.best[0].mfu or 0.0)
    if all(plan.best[0].flops_per_gpu for plan in plans):
        quantities["TFLOP/s/GPU"] = (
            "TFLOP/s per GPU",
            lambda plan, step_s: _at(plan, step_s, (plan.best[0].flops_per_gpu or 0.0) / 1e12),
        )
    if all(plan.best[0].cost_USD for plan in plans):
        per = f"per_million_{unit}"
        quantities["cost"] = (
            f"USD per million {unit}",
            lambda plan, step_s: (plan.best[0].cost_USD or {})[per] * step_s / plan.best[0].step_time_s,
        )
    views = tuple(_scaling_view(plans, name, title, value) for name, (title, value) in quantities.items())
    caption = "Shaded: 90 % prediction interval. Dashed: linear scaling from the smallest number of GPUs."
    choosers = (("quantity", tuple(quantities)),)
    return Chart("plan-scaling", "The best plan of each number of GPUs", views, caption, choosers)


def _at(plan: PlanRecord, step_s: float, value: float) -> float:
    """A rate of the best plan, if its step took another time."""
    return value * plan.best[0].step_time_s / step_s


def _scaling_view(plans: Sequence[PlanRecord], name: str, title: str, value: Callable[[PlanRecord, float], float]) -> View:
    x = [float(plan.gpus) for plan in plans]
    best = [plan.best[0] for plan in plans]
    y = [value(plan, row.step_time_s) for plan, row in zip(plans, best, strict=True)]
    ends = [sorted((value(plan, row.high_s), value(plan, row.low_s))) for plan, row in zip(plans, best, strict=True)]
    words = percent if name == "MFU" else format_short
    texts = [
        f"{plan.gpus:,} GPUs: {layout(row.configuration)}\n{words(rate)} {name} ({_range(name, *end)})"
        for plan, row, rate, end in zip(plans, best, y, ends, strict=True)
    ]
    is_total = "/s" in name and "GPU" not in name
    linear = [y[0] * gpus / x[0] if is_total else y[0] for gpus in x]
    marks: tuple[Mark, ...] = (
        Band(_BEST, BLUE, x, [low for low, _ in ends], [high for _, high in ends]),
        Line(_LINEAR, GREY, x, linear, dashed=True),
        Line(_BEST, BLUE, x, y, texts, "circle"),
    )
    far = x[-1] > _FAR * x[0]
    ticks = tuple((gpus, f"{gpus:,.0f}") for gpus in x)
    y_axis = ChartAxis(title, log=far and is_total, percent=name == "MFU")
    finding = f"{plans[-1].gpus:,} GPUs: {words(y[-1])} {name} ({_range(name, *ends[-1])})"
    return View(ChartAxis("GPUs", far, ticks), y_axis, marks, finding, (name,))


def _range(name: str, low: float, high: float) -> str:
    return f"{percent(low)} to {percent(high)}" if name == "MFU" else format_short_range(low, high)


def pareto(plans: Sequence[PlanRecord]) -> Chart | None:
    """The Pareto front of step time and memory of each size, as steps, and the configurations that were replayed."""
    plans = [plan for plan in reversed(plans) if len(plan.front) > 1]
    if not plans:
        return None
    views = tuple(_front_view(plan) for plan in plans)
    caption = (
        "Lower left is better. The line is the Pareto front of all configurations that fit, by estimate: no other is both "
        "faster and smaller."
    )
    choosers = (("GPUs", tuple(f"{plan.gpus:,}" for plan in plans)),)
    return Chart("plan-pareto", "Step time against memory", views, caption, choosers if len(plans) > 1 else ())


def _front_view(plan: PlanRecord) -> View:
    time_s = [point.estimated_s for point in plan.front]
    memory = [point.memory_bytes / _GIB for point in plan.front]
    texts = [
        f"{layout(point.configuration)}\n{format_time_s(point.estimated_s)} (estimated), {format_bytes(point.memory_bytes)}"
        for point in plan.front
    ]
    # between two points the memory is that of the faster one
    steps_x = [time_s[0], *(time for time in time_s[1:] for _ in range(2))]
    steps_y = [*(size for size in memory[:-1] for _ in range(2)), memory[-1]]
    capacity = plan.capacity_bytes / _GIB
    marks: tuple[Mark, ...] = (
        Line("Pareto front", BLUE, steps_x, steps_y),
        Line("Pareto front", BLUE, time_s, memory, texts, "circle", joined=False),
        Line(
            "replayed",
            VERMILLION,
            [row.step_time_s for row in plan.best],
            [row.memory_bytes / _GIB for row in plan.best],
            [_replayed_text(number, row) for number, row in enumerate(plan.best, start=1)],
            "diamond",
            joined=False,
        ),
        Line("memory that a plan may use", INK, [time_s[0], time_s[-1]], [capacity, capacity], dashed=True),
    )
    smallest = plan.front[-1]
    finding = (
        f"{plan.gpus:,} GPUs: {format_time_s(plan.front[0].estimated_s)} with {format_bytes(plan.front[0].memory_bytes)}; the "
        f"one with the least memory takes {format_time_s(smallest.estimated_s)} with {format_bytes(smallest.memory_bytes)}"
    )
    choices = (f"{plan.gpus:,}",)
    return View(ChartAxis("step time, s", zero=False), ChartAxis("memory of the fullest rank, GiB"), marks, finding, choices)


def _replayed_text(number: int, row: PlanRow) -> str:
    return f"No. {number}: {layout(row.configuration)}\n{format_time_s(row.step_time_s)}, {format_bytes(row.memory_bytes)}"
