"""Text and plain data of captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.captured.reading import allocations_of
from scaleproof.simulator.captured.record import Capture, EventKind, RecordedRanks
from scaleproof.simulator.common.units import counted, format_bytes, format_short
from scaleproof.simulator.memory.captured import LiveMemory, PeakMemory

if TYPE_CHECKING:
    from scaleproof.simulator.captured.script import CapturedScript
    from scaleproof.validator.capture.capture import CaptureCosts

# Most lines, modules and decisions that are printed.
_MOST: Final = 6


def plain(capture: Capture, costs: CaptureCosts, script: CapturedScript | None = None) -> dict[str, Any]:
    """What was captured, as plain data."""
    return {
        "script": capture.script,
        "ranks": capture.world_size,
        "device": capture.device,
        "cluster": capture.cluster,
        "samples": script.samples * script.replicas.count if script and script.samples_known else None,
        "samples_rule": script.samples_rule if script else "",
        "samples_conflict": script.samples_conflict if script else "",
        "classes": [_class_plain(one) for one in capture.classes],
        "warnings": list(capture.warnings),
        "capture": {"spent_s": costs.spent_s, "played_ranks": costs.played, "memory_bytes": costs.memory_bytes},
    }


def _class_plain(one: RecordedRanks) -> dict[str, Any]:
    return {
        "name": one.name,
        "ranks": len(one),
        "played": one.played,
        "why": one.why,
        "operators": len(one.rows(EventKind.OPERATOR)),
        "flops": _flops(one),
        "moved_bytes": _moved_bytes(one),
        "communication_bytes": dict(_communication(one)),
        "peak_bytes": one.peak_bytes[1],
        "parameters": one.parameters,
        "decided": [decided._asdict() for decided in one.decisions],
    }


def describe(capture: Capture, costs: CaptureCosts, following: str, script: CapturedScript | None = None) -> str:
    """A table of the rank classes, the samples of a step, and what policies decided. script: None if it cannot be predicted.
    following: the command to continue with, if any."""
    target = f"{capture.world_size} ranks on {capture.cluster or capture.device}"
    played = f"{costs.played} of {capture.world_size} ranks played, at most {format_bytes(costs.memory_bytes)} each"
    rows = [("ranks", "number", "operators", "FLOPs", "moved", "sent", "peak memory")]
    for one in capture.classes:
        sent = sum(_communication(one).values())
        operators = len(one.rows(EventKind.OPERATOR))
        rows.append(
            (one.name, str(len(one)), str(operators), format_short(_flops(one)), format_bytes(_moved_bytes(one)),
             format_bytes(sent), format_bytes(one.peak_bytes[1]))
        )  # fmt: skip
    lines = [f"{capture.script}: {target}", *table(rows), f"  captured in {costs.spent_s:.1f} s: {played}"]
    for one in capture.classes:
        if one.why:
            lines += wrapped(f"{one.name}: {one.why}", "  ", "    ")
    lines += [*(_samples(script) if script is not None else ()), *_decisions(capture)]
    return "\n".join([*lines, *([f"  next: {following}"] if following else [])])


def _decisions(capture: Capture) -> list[str]:
    """Lines on values that were not computed."""
    counts = Counter[tuple[str, str]]()
    for one in capture.classes:
        for decided in one.decisions:
            counts[decided.line, decided.words] += decided.times
    return [
        line
        for (where, words), count in counts.most_common(_MOST)
        for line in wrapped(f"{where or 'a line of a library'}: {words} ({counted(count, 'time')})", "  ", "    ")
    ]


def _samples(script: CapturedScript) -> Iterator[str]:
    """Lines on the samples of a step, and how they were found."""
    workers = script.replicas.count
    if not script.samples_known:
        tokens = f"{counted((script.tokens or 0) * workers, 'token')} a step, samples" if script.tokens else "samples"
        yield from wrapped(f"{tokens} not known: {script.samples_rule}", "  ", "    ")
        return
    tokens = f" of {counted(script.tokens, 'token')}" if script.tokens else ""
    each = f", {script.samples:,} on each of {workers:,} workers" if workers > 1 else ""
    total = counted(script.samples * workers, "sample")
    yield from wrapped(f"{total}{tokens} a step{each}: {script.samples_rule}", "  ", "    ")
    if script.samples_conflict:
        yield from wrapped(f"{script.samples_conflict}; if that is wrong, give --samples", "  ", "    ")


def memory_plain(capture: Capture) -> list[dict[str, Any]]:
    """The peaks of all classes as plain data."""
    return [_memory_plain(one) for one in capture.classes]


def _memory_plain(one: RecordedRanks) -> dict[str, Any]:
    peak = _peak(one)
    return {
        "name": one.name,
        "ranks": len(one),
        "size_bytes": peak.size_bytes,
        "setup_bytes": one.peak_bytes[0],
        "categories": dict(peak.holders_bytes),
        "modules": dict(peak.modules_bytes),
        "lines": dict(peak.lines_bytes),
        "last_line": peak.last.line if peak.last else "",
        "last_bytes": peak.last.size_bytes if peak.last else 0,
    }


def describe_memory(capture: Capture, limit_bytes: int) -> str:
    """The peak of each class by category, module and line."""
    lines = [f"{capture.script}: peak memory of a step of {capture.world_size} ranks on {capture.cluster or capture.device}"]
    for one in capture.classes:
        peak = _peak(one)
        share = peak.size_bytes / limit_bytes
        fits = "" if share <= 1 else ": out of memory"
        lines.append(f"{one.name}: {format_bytes(peak.size_bytes)}, {share:.0%} of the device{fits}")
        if one.peak_bytes[0] > peak.size_bytes:
            lines.append(f"  before this step: {format_bytes(one.peak_bytes[0])}")
        if peak.last is not None:
            lines.append(f"  reached at {peak.last.line or 'a library'}, which allocates {format_bytes(peak.last.size_bytes)}")
        by_holder = {holder.replace("_", " "): size for holder, size in peak.holders_bytes.items()}
        for title, sizes in (("category", by_holder), ("module", peak.modules_bytes), ("line", peak.lines_bytes)):
            lines += table([(title, "bytes", "share"), *_largest(sizes)])
    return "\n".join(lines)


def _peak(one: RecordedRanks) -> PeakMemory:
    """The peak of a class's step, without what the allocator rounds and keeps."""
    return LiveMemory.from_allocations(*allocations_of(one)).peak


def _largest(sizes: Mapping[str, int]) -> Sequence[tuple[str, str, str]]:
    total = sum(sizes.values()) or 1
    items = list(sizes.items())
    rest = sum(size for _, size in items[_MOST:])
    shown = items[:_MOST] + ([("others", rest)] if rest else [])
    return [(name or "libraries", format_bytes(size), f"{size / total:.0%}") for name, size in shown]


def _flops(one: RecordedRanks) -> float:
    return float(one.columns["flops"][one.rows(EventKind.OPERATOR)].sum())


def _moved_bytes(one: RecordedRanks) -> int:
    """Bytes that kernels without products, and copies, read and write."""
    rows = one.rows(EventKind.OPERATOR, EventKind.COPY)
    moves = rows[one.columns["flops"][rows] <= 0]
    return sum(int(one.columns[column][moves].clip(0).sum()) for column in ("bytes_read", "bytes_written"))


def _communication(one: RecordedRanks) -> Counter[str]:
    """Bytes that a rank puts into collectives and messages, by their names."""
    sizes = Counter[str]()
    for row in one.rows(EventKind.COLLECTIVE, EventKind.SEND).tolist():
        sizes[one.text("name", row)] += int(one.columns["bytes_read"][row])
    return sizes
