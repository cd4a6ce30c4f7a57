"""Diagnoses as sections: what is lost by cause, ranks, hosts, iterations, whether it is normal, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.descriptions import evidence
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.simulator.analysis.diagnosis import Diagnosis, Finding, HostRate, Normal, RankTimes, SnapshotMemory
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_change,
    format_interval_s,
    format_percent,
    format_range,
    format_time_s,
)

# Rows and sentences that consoles print.
_MOST_FINDINGS: Final = 8
_MOST_SENTENCES: Final = 4
_MOST_RANKS: Final = 6
_MOST_NOTES: Final = 5


def describe(found: Diagnosis) -> Description:
    """The description of a diagnosis."""
    step = f", {format_time_s(found.step_s)} a step" if found.step_s else ""
    read = f"diagnosed from {', '.join(found.files)}{step}" if found.files else f"diagnosis{step}"
    hosts = {one.host for one in found.ranks if one.host} | {one.host for one in found.hosts}
    first = next(iter(found.faults), None)
    # tests of links show shares of a rate
    of_step = "of each step " if first and first.loss_s is not None else ""
    figures = [
        *([(format_time_s(found.step_s), "median step")] if found.step_s else []),
        *([(format_percent(first.share), f"{of_step}lost to the first cause")] if first and first.share else []),
        (str(len(found.faults)), "cause found" if len(found.faults) == 1 else "causes found"),
        *([(str(len(found.ranks)), "ranks traced")] if found.ranks else []),
        *([(str(len(hosts)), "hosts")] if hosts else []),
    ]
    # names of hosts keep their letters
    is_host = first is not None and first.words.startswith(first.hosts)
    headline = found.headline if is_host else f"{found.headline[:1].upper()}{found.headline[1:]}"
    return Description(read, headline, figures=figures, sections=list(_sections(found)))


def sentences(findings: Sequence[Finding]) -> list[str]:
    """The findings as sentences, without costs of the layout."""
    return [found.words for found in findings if found.is_fault]


def _sections(found: Diagnosis) -> Iterator[Section]:
    if found.findings:
        further = [one.words for one in found.findings[:_MOST_SENTENCES] if one.words != found.headline]
        yield Section("Findings", "What is lost, by cause", tables=[_findings(found.findings)], notes=further)
    if found.normal is not None:
        yield _normal(found.normal)
        if found.normal.evidence is not None and found.normal.evidence.runs:
            yield evidence.describe(found.normal.evidence)
    if len(found.ranks) > 1:
        yield Section("Ranks", "Ranks and phases", tables=[_ranks(found)], charts=lambda: _heat_map(found))
    if found.iterations:
        yield Section("Iterations", "Step times over iterations", charts=lambda: _iterations(found))
    if found.hosts:
        yield Section("Hosts", "Hosts in tests of collectives", tables=[_hosts(found.hosts)])
    if found.memory:
        yield Section("Memory", "Memory in snapshots", tables=[_memory(found.memory)])
    if found.notes:
        more = [f"and {counted(len(found.notes) - _MOST_NOTES, 'more note')}, see --json"][: len(found.notes) > _MOST_NOTES]
        yield Section("Notes", "What could not be used", notes=[*found.notes[:_MOST_NOTES], *more])


def _findings(findings: Sequence[Finding]) -> Table:
    columns = [
        Column("cause", [one.cause for one in findings], is_text=True),
        Column("where", [one.where or "–" for one in findings], is_text=True, most_letters=32),
        Column("loses", [format_time_s(one.loss_s) if one.loss_s is not None else "–" for one in findings]),
        Column("share", [format_percent(one.share) if one.share else "–" for one in findings]),
        Column("confidence", [one.confidence for one in findings], is_text=True),
        Column("when", [one.since or "always" for one in findings], is_text=True, is_detail=True),
        Column("file", [Path(one.source).name for one in findings], is_text=True, under="where", is_detail=True),
    ]
    return Table(columns, most_rows=_MOST_FINDINGS)


def _ranks(found: Diagnosis) -> Table:
    """Ranks by how long others wait for them: those that wait the least come first."""
    ranks = sorted(found.ranks, key=lambda one: one.waiting_s)
    columns = [
        Column("rank", [_name(one) for one in ranks], is_text=True),
        *(
            Column(head, [format_time_s(getattr(one, field)) for one in ranks])
            for head, field in (
                ("compute", "compute_s"), ("exposed", "transfer_s"), ("waits", "waiting_s"), ("start", "input_s"),
                ("idle", "gap_s"),
            )
        ),
        Column("kernels", [f"{one.slowdown:.2f} x" for one in ranks]),
    ]  # fmt: skip
    below = ["start: before the first kernel; kernels: time of the same kernels against other ranks; who waits least is first"]
    return Table(columns, "Times of each rank", most_rows=_MOST_RANKS, below=below, is_folded=True)


def _name(one: RankTimes) -> str:
    inside = ", ".join([*([one.host] if one.host else []), *([f"GPU {one.device}"] if one.device else [])])
    return f"{one.rank}{f' ({inside})' if inside else ''}"


def _hosts(hosts: Sequence[HostRate]) -> Table:
    columns = [
        Column("host", [one.host for one in hosts], is_text=True),
        Column("slow logs", [f"{one.slow} of {one.logs}" for one in hosts]),
        Column("median GB/s", [f"{one.GBps:.3g}" for one in hosts]),
    ]
    return Table(columns, most_rows=_MOST_FINDINGS)


def _memory(memory: Sequence[SnapshotMemory]) -> Table:
    columns = [
        Column("rank", [str(one.rank) if one.rank >= 0 else f"GPU {one.device}" for one in memory], is_text=True),
        *(
            Column(head, [format_bytes(getattr(one, f"{head}_bytes")) for one in memory])
            for head in ("peak", "reserved", "allocated")
        ),
        Column("retries", [str(one.retries) for one in memory]),
        Column("live at the peak", [", ".join(one.holders) for one in memory], is_text=True, most_letters=34),
    ]
    return Table(columns, most_rows=_MOST_RANKS)


def _normal(found: Normal) -> Section:
    """Whether the step time is normal, and what would help."""
    ends = format_interval_s(found.low_s, found.high_s)
    predicted = f"{format_time_s(found.predicted_s)} predicted (90 % interval {ends})"
    lines = [f"{found.words} ({format_time_s(found.measured_s)} measured, {predicted}; framework {found.framework})"]
    if found.mfu and found.predicted_mfu and found.mfu <= 1:
        best, worst = (found.predicted_mfu * found.predicted_s / end_s for end_s in (found.low_s, found.high_s))
        usual = f"{100 * worst:.0f}-{100 * best:.0f} %"
        best_of_all = f"; the best layout would give {100 * found.best_mfu:.0f} %" if found.best_mfu else ""
        lines.append(f"you run at {format_percent(found.mfu)} MFU; this software usually reaches {usual}{best_of_all}")
    gains = [
        Column("what would help", [one.change for one in found.what_ifs], is_text=True),
        Column("throughput", [format_change(one.gain) for one in found.what_ifs]),
        Column("90 % interval", [_between(one.low, one.high) for one in found.what_ifs]),
    ]
    tables = [Table(gains, notes=lines)] if found.what_ifs else []
    return Section("Normal", "Is this normal?", tables=tables, notes=[] if tables else lines)


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else format_range(format_change(low), format_change(high))


def _heat_map(found: Diagnosis) -> list[Chart | None]:
    """Consoles do not draw it, and need not import how."""
    from scaleproof.reports.charts.diagnosis import heat_map

    return [heat_map(found)]


def _iterations(found: Diagnosis) -> list[Chart]:
    from scaleproof.reports.charts.diagnosis import all_iterations

    return all_iterations(found.iterations)
