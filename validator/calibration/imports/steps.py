"""Breakdown of profiled steps into computation, communication, their overlap, and idle time."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from scaleproof.simulator.cluster.collectives.groups import OPS, Op
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.spans import TimeIntervals
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.scenario.dump import written
from scaleproof.validator.calibration.cluster_file.section import seconds_text
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TracedCollective
from scaleproof.validator.calibration.imports.merging import joined
from scaleproof.validator.calibration.imports.reading import ImportNotes, ImportResult, Machines, group_text, ranks_text
from scaleproof.validator.probe.points import Point

ALONE: Final = "step without waiting for communication"
# Rows of the table of communication.
_CALLS: Final = 12
# Larger numbers of ranks are damaged data.
_MOST_RANKS: Final = 1_000_000


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step of one rank. compute_s, communication_s: in which any is in progress. both_s: in which both are."""

    rank: int
    name: str
    time_s: float
    compute_s: float
    communication_s: float
    both_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds of communication without concurrent computation."""
        return self.communication_s - self.both_s

    @property
    def idle_s(self) -> float:
        """Seconds in which the device is idle."""
        return max(0.0, self.time_s - self.compute_s - self.exposed_s)

    @property
    def alone_s(self) -> float:
        """Seconds of the step without exposed communication."""
        return max(0.0, self.time_s - self.exposed_s)


def step_times(trace: Trace, number: int) -> list[StepTimes]:
    """Times of each step; work of a device belongs to the step in which the host launched it. number: index of the trace."""
    starts = [step.start_s for step in trace.steps]
    mine: list[list[DeviceWork]] = [[] for _ in trace.steps]
    for work in trace.works:
        step = bisect.bisect_right(starts, work.launched_s) - 1
        if step >= 0 and work.launched_s <= trace.steps[step].end_s:
            mine[step].append(work)
    rank = trace.rank if trace.rank >= 0 else number
    return [
        StepTimes(rank, step.name, step.end_s - step.start_s, *_covered(works))
        for step, works in zip(trace.steps, mine, strict=True)
        if works
    ]


def _covered(works: Iterable[DeviceWork]) -> tuple[float, float, float]:
    """Seconds of computation, of communication, and of both concurrently."""
    computes = [work for work in works if work.exchange is None]
    exchanges = [work for work in works if work.exchange is not None]
    compute_s, exchange_s, any_s = (union_s(part) for part in (computes, exchanges, [*computes, *exchanges]))
    return compute_s, exchange_s, compute_s + exchange_s - any_s


def union_s(works: Sequence[DeviceWork]) -> float:
    """Seconds in which at least one of the works is in progress."""
    covered = union_of(works)
    return float((covered.end_s - covered.start_s).sum())


def union_of(works: Sequence[DeviceWork]) -> TimeIntervals:
    """The union of the works' intervals, in order."""
    starts, ends = np.array([work.start_s for work in works]), np.array([work.end_s for work in works])
    return TimeIntervals(np.zeros(len(works), dtype=np.int64), starts, ends).union()


def median_of(steps: Sequence[StepTimes], value: Callable[[StepTimes], float]) -> float:
    """Median of a value over all steps of all ranks."""
    return statistics.median(value(step) for step in steps)


def find(
    tool: str, traces: Sequence[Trace], devices: int, notes: ImportNotes, samples: int = 0
) -> tuple[ImportResult, list[StepTimes]]:
    """Points and step times of all ranks' traces. tool: that wrote them. devices: per node, 0 if unknown."""
    steps = [step for number, trace in enumerate(traces) for step in step_times(trace, number)]
    for trace in traces:
        if not trace.has_steps:
            cure = "call profiler.step() after each step"
            notes.add(f"{trace.path}: no ProfilerStep found; the whole trace is taken as one step ({cure})")
    largest = max(trace.world for trace in traces)
    devices = devices or _devices(traces, largest, notes)
    points = collective_points(traces, devices, notes)
    points += _alone(steps, samples)
    if not any(trace.exchanges for trace in traces):
        files = ", ".join(str(trace.path) for trace in traces)
        notes.add(f"{files}: no communication found; step times are used, collectives are not measured")
    elif len(traces) == 1:
        text = "one rank's trace, whose collectives include waiting for others; give all ranks' traces"
        notes.add(f"{traces[0].path}: {text}")
    gpu = next((trace.gpu for trace in traces if trace.gpu), "")
    machines = Machines(gpu, -(-largest // devices) if devices else 0, devices)
    return ImportResult(tool, [str(trace.path) for trace in traces], machines, joined(points), notes), steps


def parts(steps: Sequence[StepTimes]) -> list[tuple[str, str, str]]:
    """Rows of a table of the median step's parts: (part, seconds, share)."""
    whole_s = median_of(steps, lambda step: step.time_s)
    named: dict[str, Callable[[StepTimes], float]] = {
        "step": lambda step: step.time_s,
        "computation": lambda step: step.compute_s,
        "communication": lambda step: step.communication_s,
        "  hidden behind computation": lambda step: step.both_s,
        "  exposed": lambda step: step.exposed_s,
        "idle": lambda step: step.idle_s,
    }
    medians = {name: median_of(steps, value) for name, value in named.items()}
    return [(name, format_time_s(part_s), f"{part_s / whole_s:.1%}" if whole_s else "") for name, part_s in medians.items()]


def calls(traces: Sequence[Trace]) -> list[tuple[str, ...]]:
    """Rows of a table of communication, longest total time first: (what, ranks, size, calls, median seconds)."""
    times: dict[tuple[str, int, float], list[float]] = {}
    for trace in traces:
        for work, exchange in trace.exchanges:
            key = (exchange.op or "unknown", exchange.size, exchange.size_bytes)
            times.setdefault(key, []).append(work.end_s - work.start_s)
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))[:_CALLS]
    return [
        (
            op,
            str(ranks),
            format_bytes(size),
            str(len(mine)),
            format_time_s(statistics.median(mine)) if any(mine) else "unknown",
        )
        for (op, ranks, size), mine in ordered
    ]


def scenario(model: str, cluster: Path, workers: int, samples: int, precision: str, step_s: float) -> dict[str, Any]:
    """Data of the scenario of the profiled training: data-parallel, by `workers` workers, with the profiled time in place of
    the device's model: their steps over `samples` samples take step_s without waiting."""
    return {
        "description": f"{model} as it was profiled on {workers} ranks; set its optimizer",
        "model": model,
        "cluster": f"./{cluster.name}",
        "strategy": {"kind": "data_parallel", "workers": workers},
        "batch": {"per_worker": samples},
        "training": {"precision": precision, "measured_step": {"samples": samples, "time": seconds_text(step_s)}},
    }


def scenario_path(cluster: Path) -> Path:
    """Path of the scenario that belongs to a cluster file."""
    return cluster.with_suffix(".scenario.yaml")


def write_scenario(scenario: dict[str, Any], path: Path) -> None:
    """Writes a scenario as YAML."""
    header = "# Imported from a trace of torch.profiler. `scaleproof predict` takes this file.\n"
    write_atomically(path, (header + written(scenario, default_flow_style=False)).encode())


def _devices(traces: Sequence[Trace], world: int, notes: ImportNotes) -> int:
    """Devices per node: ranks per host if all hosts are known, otherwise the number that a process sees, with a note."""
    hosts = {trace.host for trace in traces}
    if len(traces) >= world and "" not in hosts:
        return max(1, -(-world // len(hosts)))
    seen = max(trace.devices for trace in traces) or world
    if world > 1:
        notes.add(f"{seen} GPUs per node are assumed, the number that a process sees; give --cluster if that is wrong")
    return max(1, min(seen, world))


def _alone(steps: Sequence[StepTimes], samples: int) -> list[Point]:
    steps = [step for step in steps if step.time_s > 0]
    ranks = dict.fromkeys(step.rank for step in steps)
    return [
        Point(
            probe="layer",
            what=ALONE,
            where=f"rank {rank}",
            ranks=(rank,),
            group="",
            size=float(samples),
            unit="samples",
            seconds=tuple(step.alone_s for step in steps if step.rank == rank),
            stopped="time",
        )
        for rank in ranks
    ]


def collective_points(traces: Sequence[Trace], devices: int, notes: ImportNotes) -> list[Point]:
    """A point for each call of a collective that has a time in all its traces. Early ranks wait in it and the last one does
    not, so the shortest time over ranks counts."""
    calls: dict[tuple[object, ...], list[tuple[TracedCollective, float]]] = {}
    unsized = 0
    for trace in traces:
        counts: dict[TracedCollective, int] = {}
        for work, exchange in trace.exchanges:
            unsized += exchange.op is None
            counts[exchange] = counts.get(exchange, 0) + 1
            calls.setdefault((exchange, counts[exchange]), []).append((exchange, work.end_s - work.start_s))
    if unsized:
        notes.add(f"{unsized} communications without size or collective (older torch); their time counts, they are not fitted")
    return [
        _point(exchange, exchange.op, min(seconds for _, seconds in mine), devices)
        for mine in calls.values()
        for exchange in [mine[0][0]]
        if exchange.op is not None and 1 < exchange.size <= _MOST_RANKS and all(seconds > 0 for _, seconds in mine)
    ]


def _point(exchange: TracedCollective, op: Op, seconds: float, devices: int) -> Point:
    nodes = len({rank // devices for rank in exchange.members}) if exchange.members else -(-exchange.size // devices)
    is_message = op == "sendrecv"
    assert op in OPS
    return Point(
        probe="message" if is_message else "collective",
        what="send" if is_message else op,
        where=ranks_text(exchange.size),
        ranks=tuple(range(exchange.size)),
        group="" if is_message else group_text(exchange.size, nodes),
        size=exchange.size_bytes,
        unit="bytes",
        seconds=(seconds,),
        stopped="time",
        numbers={"nodes": float(nodes), "traced": 1.0},
    )
