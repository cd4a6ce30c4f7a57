"""A plan in words and as data: the best, why the next lost, and what less memory costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from simulator.apart import SURE
from simulator.planner.doubt import Doubt, alike
from simulator.planner.search import Choice, Planned
from simulator.units import format_bytes, format_energy_J, format_time_s, format_USD

# Rows of the front that are printed, and the share of a step from which on a cause is told.
_MOST_OF_FRONT: Final = 6
_NOTICED: Final = 0.001
_DEGREES: Final = ("tensor", "context", "expert", "stages", "chunks", "workers")


def describe(planned: Planned, doubt: Doubt) -> str:
    """For people to read."""
    lines = [*_headline(planned), "", *_table(_rows(planned, doubt)), ""]
    lines += [*_behind(planned, doubt), *_front(planned), "", "the best, for a scenario file:", *_yaml(planned.best[0])]
    return "\n".join(lines)


def plain(planned: Planned, doubt: Doubt) -> dict[str, Any]:
    """As data for JSON, in SI units."""
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
        "best": [_choice(planned, doubt, number) for number in range(len(planned.best))],
        "front": [
            planned.configurations.row(row)
            | {"estimated_s": float(planned.expected_s[row]), "memory_bytes": float(planned.memory_bytes[row])}
            for row in planned.front
        ],
    }


def _choice(planned: Planned, doubt: Doubt, number: int) -> dict[str, Any]:
    choice = planned.best[number]
    low, high = doubt.interval(number)
    step_s = choice.run.step_time_s
    told: dict[str, Any] = planned.configurations.row(choice.row)
    told |= {
        "step_time_s": step_s, "low_s": low * step_s, "high_s": high * step_s, "samples_per_s": choice.run.samples_per_s,
        "memory_bytes": choice.memory_bytes, "cost_USD": choice.run.cost_USD, "energy_J": choice.run.energy_J,
    }  # fmt: skip
    return told | ({"best_is_faster": _faster(planned, doubt, number)} if number else {})


def _faster(planned: Planned, doubt: Doubt, number: int) -> float:
    """The probability that the best takes less time than another."""
    best, other = planned.best[0], planned.best[number]
    return doubt.faster(0, number, other.run.step_time_s / best.run.step_time_s, alike(best.scenario, other.scenario))


def _headline(planned: Planned) -> Iterator[str]:
    scenario, count = planned.configurations.space.scenario, len(planned.configurations)
    ranks = planned.best[0].run.ranks
    yield f"{scenario.model.name} on {ranks:,} ranks of {scenario.cluster.name}, {scenario.total_samples:,} samples a step"
    yield (
        f"{count:,} configurations estimated in {format_time_s(planned.estimate_s)}, of which {planned.fitting:,} fit into "
        f"{format_bytes(planned.capacity_bytes)}; {planned.replayed} replayed in {format_time_s(planned.replay_s)}"
    )
    if planned.proved:
        yield f"proved: no other that fits beats the best in {planned.objective} by replay"
    else:
        yield f"not proved: after {planned.replayed} replays others may still beat the best"


def _rows(planned: Planned, doubt: Doubt) -> Iterator[list[str]]:
    degrees = [name for name in _DEGREES if any(planned.configurations.row(one.row)[name] > 1 for one in planned.best)]
    told = _objective(planned.best[0], planned)
    head = ["", "step", "90 % between", *([planned.objective] if told else []), "memory", *degrees, "microbatches"]
    rows = [planned.configurations.row(choice.row) for choice in planned.best]
    orders = [" ".join(axis for axis in row["order"] if row.get(axis, 1) > 1) for row in rows]
    shared, ordered = any(row["sequence_parallel"] for row in rows), any(" " in order for order in orders)
    last = [*(["sequence"] if shared else []), "bucket", *(["innermost first"] if ordered else [])]
    yield [*head, "schedule", "zero", "recompute", *last]
    for number, (choice, row) in enumerate(zip(planned.best, rows, strict=True)):
        step_s, (low, high) = choice.run.step_time_s, doubt.interval(number)
        between = f"{format_time_s(low * step_s)} and {format_time_s(high * step_s)}"
        cells = [f"{number + 1}", format_time_s(step_s), between, *([_objective(choice, planned)] if told else [])]
        cells += [format_bytes(choice.memory_bytes), *(str(row[name]) for name in degrees)]
        cells += [f"{row['microbatches']} of {row['samples']}", row["schedule"], str(row["zero"]), row["recompute"]]
        cells += ["parallel" if row["sequence_parallel"] else "whole"] if shared else []
        yield [*cells, format_bytes(row["bucket_bytes"]), *([orders[number]] if ordered else [])]


def _objective(choice: Choice, planned: Planned) -> str:
    """What a step comes to, where that is not its time."""
    run = choice.run
    if planned.objective == "energy" and run.energy_J:
        return format_energy_J(run.energy_J["per_step"])
    if planned.objective == "cost" and run.cost_USD:
        return format_USD(run.cost_USD["per_step"])
    if planned.objective == "tokens-per-dollar" and run.cost_USD:
        return f"{1e6 / run.cost_USD['per_million_tokens']:,.0f}"
    return ""


def _table(rows: Iterator[list[str]]) -> Iterator[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row[:-1], widths[:-1], strict=True)) + f"  {row[-1]}"


def _behind(planned: Planned, doubt: Doubt) -> Iterator[str]:
    """Why the second lost, and how sure that is."""
    if len(planned.best) < 2:
        return
    first, second = planned.best[:2]
    more_s = second.run.step_time_s - first.run.step_time_s
    if more_s <= 0:
        yield "the second takes as long as the best"
    else:
        parts = {cause: second.run.breakdown_s[cause] - seconds for cause, seconds in first.run.breakdown_s.items()}
        told = [
            f"{cause.replace('_', ' ')} {'+' if seconds > 0 else '−'}{format_time_s(abs(seconds))}"
            for cause, seconds in sorted(parts.items(), key=lambda part: -abs(part[1]))
            if abs(seconds) >= _NOTICED * more_s
        ]
        yield f"the second takes {more_s / first.run.step_time_s:.2%} longer: {', '.join(told)}".replace("%", " %")
    faster = _faster(planned, doubt, 1)
    sure = f"{faster:.0%}".replace("%", " %")
    apart = "the best is faster" if faster >= SURE else "the two cannot be told apart: the best is faster"
    yield f"{apart} with a probability of {sure}"
    same = sum(_faster(planned, doubt, number) < SURE for number in range(1, len(planned.best)))
    if same > 1:
        yield f"of the {len(planned.best) - 1} behind the best {same} cannot be told apart from it"


def _front(planned: Planned) -> Iterator[str]:
    """What less memory costs, as estimated."""
    front: Sequence[int] = planned.front
    if len(front) < 2:
        return
    step = max(1, -(-len(front) // _MOST_OF_FRONT))
    parts = [
        f"{format_time_s(float(planned.expected_s[row]))} with {format_bytes(float(planned.memory_bytes[row]))}"
        for row in sorted({*front[::step], front[-1]}, key=front.index)
    ]
    yield f"nothing is both faster and leaner than (estimated, {len(front)} in all): {', '.join(parts)}"


def _yaml(choice: Choice) -> Iterator[str]:
    """Its strategy and what of training was chosen."""
    scenario = choice.scenario
    strategy = scenario.strategy.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = {key: value for key, value in strategy.items() if key not in ("kind", "bucket")}
    strategy = {"kind": "hybrid", **text, "bucket": format_bytes(scenario.strategy.plan.bucket_bytes)}
    training = {"zero": scenario.training.zero, "recompute": str(scenario.training.recompute)}
    for line in yaml.safe_dump(
        {"strategy": strategy, "training": training}, sort_keys=False, default_flow_style=None
    ).splitlines():
        yield f"  {line}"
