"""Predictions of captured scripts as sections: streams of a step, live bytes over it, and what holds the peak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.reports.charts.runs.memory_curve import RankCurve, memory_curve
from scaleproof.reports.sections import Column, Section, Table, slug
from scaleproof.reports.text import percent
from scaleproof.reports.timeline.stream_chart import stream_chart
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.units import counted, format_bytes, format_percent
from scaleproof.simulator.memory import capacity_bytes
from scaleproof.simulator.memory.captured import classes_memory
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.captured.streams import class_streams
from scaleproof.simulator.strategy.scenario_job import job_of

# Kinds of ranks that are shown, those with most memory first; modules and lines of the peak.
_MOST_CLASSES: Final = 8
_MOST_ROWS: Final = 12
_LIBRARY: Final = "libraries"


def sections(scenario: Scenario) -> list[Section]:
    """The sections of a scenario of a captured script."""
    strategy = scenario.strategy
    assert isinstance(strategy, CapturedStrategy)
    streams = class_streams(strategy.script, job_of(scenario), strategy.workers)
    lives = [one.live for one in classes_memory(scenario)]
    curves = [RankCurve(*pair) for pair in zip(streams, lives, strict=True)]
    fullest = max(curves, key=lambda one: one.live.peak.size_bytes)
    curves = [fullest, *(one for one in curves if one is not fullest)][:_MOST_CLASSES]
    name, of = slug(scenario.name), scenario.name
    kinds = counted(len(streams), "kind") + " of ranks"
    intro = f"{kinds}, of which one is shown at a time." if len(curves) > 1 else ""
    known = strategy.script.coverage(scenario.cluster.device, scenario.framework)
    shares = f"Of the time of kernels, {percent(known.measured)} is of measured shapes, {percent(known.extrapolated)} "
    shares += f"extrapolated from them, and {percent(known.unknown)} of unknown cost, counted by the bytes that are moved."
    of_streams = stream_chart(f"streams-{name}", of, [one.streams for one in curves])
    of_memory = memory_curve(f"memory-curve-{name}", of, curves, capacity_bytes(scenario))
    return [
        Section("Streams", "One step, stream by stream", f"{intro} {shares}".strip(), charts=lambda: [of_streams]),
        Section("Memory curve", "Memory over the step", intro, charts=lambda: [of_memory]),
        Section("Peak", "What the peak holds", tables=list(_tables(fullest))),
    ]


def _tables(one: RankCurve) -> Iterator[Table]:
    """Tables of bytes at the peak by line and by module."""
    peak = one.live.peak
    for title, sizes in (("line", peak.lines_bytes), ("module", peak.modules_bytes)):
        total = sum(sizes.values()) or 1
        items = list(sizes.items())
        rest = sum(size for _, size in items[_MOST_ROWS:])
        shown = items[:_MOST_ROWS] + ([(f"{len(items) - _MOST_ROWS} others", rest)] if rest else [])
        columns = [
            Column(title, [name or _LIBRARY for name, _ in shown], is_text=True),
            Column("bytes", [format_bytes(size) for _, size in shown]),
            Column("share", [format_percent(size / total) for _, size in shown]),
        ]
        yield Table(columns, f"By {title}")
