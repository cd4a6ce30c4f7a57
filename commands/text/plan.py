"""Console text and JSON data of a plan: the best configurations, the gap to the second, and the cost of less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from scaleproof.commands.text.tables import table
from scaleproof.simulator.analysis.planner.search import PlanChoice, PlanResult
from scaleproof.simulator.common.units import (
    format_bytes,
    format_change_s,
    format_energy_J,
    format_percent,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.scenario.dump import dump_framework, dump_part
from scaleproof.simulator.uncertainty.pairwise import SURE
from scaleproof.simulator.uncertainty.prediction_interval import LinearResponse
from scaleproof.simulator.uncertainty.priors import common_error_share

# Number of rows of the Pareto front that are printed.
_MAX_FRONT_ROWS: Final = 6
# Minimum share of a difference from which a cause is printed.
_MIN_SHARE: Final = 0.001
_NONE: Final = "–"
_DEGREES: Final = ("tensor", "context", "expert", "expert_tensor", "stages", "chunks", "workers")


def describe(planned: PlanResult, intervals: LinearResponse) -> str:
    """Console text of a plan."""
    columns = [[head, *column] for head, column in _columns(planned, intervals).items()]
    lines = [
        *_headline(planned),
        "",
        *table(zip(*columns, strict=True), ">" * (len(columns) - 1) + "<"),
        "",
        *_second(planned, intervals),
        *_front(planned),
        *_by_servers(planned),
        "",
        "the best configuration, for a scenario file:",
        f"  {dump_framework(planned.best[0].scenario)}",
        f"  {dump_part(planned.best[0].scenario, 'strategy')}",
        f"  {dump_part(planned.best[0].scenario, 'training', ('zero', 'recompute'))}",
    ]
    return "\n".join(lines)


def plain(planned: PlanResult, intervals: LinearResponse) -> dict[str, Any]:
    """A plan as data for JSON, in SI units."""
    count = len(planned.configurations)
    return {
        "objective": planned.objective,
        "configurations": count,
        "fitting": planned.fitting,
        "estimate_seconds": planned.estimate_s,
        "configurations_per_second": count / planned.estimate_s,
        "replayed": planned.replayed,
        "replay_seconds": planned.replay_s,
        "proved": planned.proved,
        "best": [_choice(planned, intervals, number) for number in range(len(planned.best))],
        "frameworks": _frameworks(planned),
        "framework_is_default": planned.framework_is_default,
        "front": [
            planned.configurations.row(row)
            | {"estimated_s": float(planned.expected_s[row]), "memory_bytes": float(planned.memory_bytes[row])}
            for row in planned.front
        ],
    }


def _choice(planned: PlanResult, intervals: LinearResponse, number: int) -> dict[str, Any]:
    choice = planned.best[number]
    low, high = intervals.interval(number)
    step_s = choice.run.step_time_s
    data: dict[str, Any] = {"strategy": choice.scenario.strategy.kind} | planned.configurations.row(choice.row)
    data |= {
        "step_time_s": step_s, "low_s": low * step_s, "high_s": high * step_s, "samples_per_s": choice.run.samples_per_s,
        "memory_bytes": choice.memory_bytes, "cost_USD": choice.run.cost_USD, "energy_J": choice.run.energy_J,
    }  # fmt: skip
    return data | ({"best_is_faster": _faster(planned, intervals, number)} if number else {})


def _faster(planned: PlanResult, intervals: LinearResponse, number: int) -> float:
    """The probability that the best configuration is faster than another."""
    best, other = planned.best[0], planned.best[number]
    return intervals.faster(
        0, number, other.run.step_time_s / best.run.step_time_s, common_error_share(best.scenario, other.scenario)
    )


def _degree(row: Mapping[str, Any], name: str) -> int:
    """Number of ranks along an axis. Experts have the tensor-parallel size of the other layers by default."""
    if name == "expert_tensor" and row.get("expert", 1) > 1:
        return int(row[name] or row["tensor"])
    return int(row.get(name) or 1)


def _headline(planned: PlanResult) -> Iterator[str]:
    scenario, count = planned.configurations.base, len(planned.configurations)
    ranks = planned.best[0].scenario.strategy.training_ranks
    yield f"{scenario.model.name} on {ranks:,} ranks of {scenario.cluster.name}, {scenario.total_samples:,} samples a step"
    yield (
        f"{count:,} configurations estimated in {format_time_s(planned.estimate_s)}, of which {planned.fitting:,} fit into "
        f"{format_bytes(planned.capacity_bytes)}; {planned.replayed} replayed in {format_time_s(planned.replay_s)}"
    )
    frameworks = _frameworks(planned)
    default = ", by default" if planned.framework_is_default else ""
    yield f"framework{'s' if len(frameworks) > 1 else ''}: {', '.join(frameworks)}{default}"
    if planned.proved:
        with_servers = ", or with servers by prediction" if planned.configurations.has_servers().any() else ""
        yield f"proved: no other configuration that fits beats the best in {planned.objective} by replay{with_servers}"
    else:
        yield f"not proved: after {planned.replayed} replays, others may still beat the best"


def _frameworks(planned: PlanResult) -> list[str]:
    """Names of the candidate frameworks."""
    return list(dict.fromkeys(part.space.scenario.framework.name for part in planned.configurations.parts if len(part)))


def _columns(planned: PlanResult, intervals: LinearResponse) -> dict[str, list[str]]:
    """Columns of the table by their heads."""
    best, rows = planned.best, [planned.configurations.row(choice.row) for choice in planned.best]
    bounds = [intervals.interval(number) for number in range(len(best))]
    columns = {
        "": [f"{number}" for number in range(1, len(best) + 1)],
        "step": [format_time_s(one.run.step_time_s) for one in best],
        "90 % between": [
            f"{format_time_s(low * one.run.step_time_s)} and {format_time_s(high * one.run.step_time_s)}"
            for one, (low, high) in zip(best, bounds, strict=True)
        ],
    }
    if _objective(best[0], planned):
        columns[planned.objective] = [_objective(one, planned) for one in best]
    columns["memory"] = [format_bytes(one.memory_bytes) for one in best]
    for name in _DEGREES:
        degrees = [_degree(row, name) for row in rows]
        if any(degree > 1 for degree in degrees):
            columns[name] = list(map(str, degrees))
    if any("servers" in row for row in rows):
        columns["servers"] = [_servers(row) for row in rows]
    columns["microbatches"] = [f"{row.get('microbatches', 1)} of {row['samples']}" for row in rows]
    if any("servers" not in row for row in rows):
        columns |= {name: [str(row.get(name, _NONE)) for row in rows] for name in ("schedule", "zero")}
    columns["recompute"] = [row["recompute"] for row in rows]
    if len({row["framework"] for row in rows}) > 1:
        columns["framework"] = [row["framework"] for row in rows]
    if any(row.get("sequence_parallel") for row in rows):
        columns["sequence"] = ["parallel" if row.get("sequence_parallel") else "whole" for row in rows]
    if any("bucket_bytes" in row for row in rows):
        columns["bucket"] = [format_bytes(row["bucket_bytes"]) if "bucket_bytes" in row else _NONE for row in rows]
    orders = [" ".join(axis for axis in row.get("order", ()) if row.get(axis, 1) > 1) for row in rows]
    return columns | ({"innermost first": orders} if any(" " in order for order in orders) else {})


def _servers(row: Mapping[str, Any]) -> str:
    """'8 dedicated, by node': number, placement, and whether workers of a node push aggregated gradients."""
    if "servers" not in row:
        return _NONE
    return f"{row['servers']} {row['placement']}" + (", by node" if row["two_level"] else "")


def _objective(choice: PlanChoice, planned: PlanResult) -> str:
    """Objective value of a step, if the objective is not its time."""
    run = choice.run
    if planned.objective == "energy" and run.energy_J:
        return format_energy_J(run.energy_J["per_step"])
    if planned.objective == "cost" and run.cost_USD:
        return format_USD(run.cost_USD["per_step"])
    if planned.objective == "tokens-per-dollar" and run.cost_USD:
        return f"{1e6 / run.cost_USD['per_million_tokens']:,.0f}"
    return ""


def _second(planned: PlanResult, intervals: LinearResponse) -> Iterator[str]:
    """Why the second is slower, and with what probability."""
    if len(planned.best) < 2:
        return
    first, second = planned.best[:2]
    more_s = second.run.step_time_s - first.run.step_time_s
    if more_s <= 0:
        yield "the second takes as long as the best"
    else:
        parts = {cause: second.run.breakdown_s[cause] - seconds for cause, seconds in first.run.breakdown_s.items()}
        causes = [
            f"{cause.replace('_', ' ')} {format_change_s(seconds)}"
            for cause, seconds in sorted(parts.items(), key=lambda part: -abs(part[1]))
            if abs(seconds) >= _MIN_SHARE * more_s
        ]
        yield f"the second takes {format_percent(more_s / first.run.step_time_s, 2)} longer: {', '.join(causes)}"
    faster = _faster(planned, intervals, 1)
    verdict = "the best is faster" if faster >= SURE else "the two are not distinguishable: the best is faster"
    yield f"{verdict} with a probability of {format_percent(faster, 0)}"
    same = sum(_faster(planned, intervals, number) < SURE for number in range(1, len(planned.best)))
    if same > 1:
        yield f"{same} of the {len(planned.best) - 1} others are not distinguishable from the best"


def _front(planned: PlanResult) -> Iterator[str]:
    """The Pareto front of estimated step time and memory."""
    front: Sequence[int] = planned.front
    if len(front) < 2:
        return
    step = max(1, -(-len(front) // _MAX_FRONT_ROWS))
    parts = [
        f"{format_time_s(float(planned.expected_s[row]))} with {format_bytes(float(planned.memory_bytes[row]))}"
        for row in sorted({*front[::step], front[-1]}, key=front.index)
    ]
    yield f"Pareto front of step time and memory (estimated, {len(front)} in total): {', '.join(parts)}"


def _by_servers(planned: PlanResult) -> Iterator[str]:
    """The shortest estimated step time by placement and number of servers."""
    configurations = planned.configurations
    least_s: dict[tuple[str, int], float] = {}
    for row in np.flatnonzero(configurations.has_servers() & (planned.memory_bytes <= planned.capacity_bytes)).tolist():
        config, expected_s = configurations.row(row), float(planned.expected_s[row])
        key = config["placement"], config["servers"]
        least_s[key] = min(expected_s, least_s.get(key, expected_s))
    for placement in sorted({placement for placement, _ in least_s}, reverse=True):
        steps = [
            f"{count}: {format_time_s(least_s[placement, count])}" for where, count in sorted(least_s) if where == placement
        ]
        yield f"a step by number of {placement} servers (estimated): {', '.join(steps)}"
