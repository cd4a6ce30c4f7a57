"""Findings from memory snapshots: ranks that ran out of memory, or whose allocator freed its cache and retried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from scaleproof.simulator.analysis.diagnosis import Cause, Finding
from scaleproof.simulator.common.units import counted, format_bytes, format_need, format_percent, format_time_s
from scaleproof.validator.calibration.imports.memory_snapshot import MemorySnapshot, Retry
from scaleproof.validator.diagnosis.places import listed

_Retried = tuple[MemorySnapshot, list[Retry]]


def diagnose_memory(snapshots: Sequence[MemorySnapshot]) -> Iterator[Finding]:
    """One finding for all ranks with the same trouble, in the words of the worst."""
    failed = [(one, own) for one in snapshots if (own := [retry for retry in one.retries if retry.short_bytes])]
    retried = [(one, own) for one in snapshots if (own := [retry for retry in one.retries if not retry.short_bytes])]
    if failed:
        (_, memory, *_), own = max(failed, key=lambda pair: pair[1][0].short_bytes)
        idle_bytes, short_bytes = memory.reserved_bytes - memory.allocated_bytes, own[0].short_bytes
        remedy = " (fragmented: try expandable_segments:True)" if idle_bytes > short_bytes else ""
        words = f"ran out of memory{_at(own)}: {format_bytes(short_bytes)} requested, "
        words += f"{format_need(idle_bytes, memory.reserved_bytes)} reserved are not allocated{remedy}; "
        words += f"{listed(memory.holders)} are live at the peak of {format_bytes(memory.peak_bytes)}"
        yield _finding("out of memory", failed, words, 1.0)
    if retried:
        lost_s, history_s, own = max((_lost_s(own), one.history_s, own) for one, own in retried)
        share = lost_s / history_s if history_s else 0.0
        words = f"frees its cache and retries {counted(len(own), 'request')}{_at(own)}, since the device is full"
        costs = f"; it costs {format_time_s(lost_s)}, {format_percent(share)} of the recorded time" if share else ""
        yield _finding("memory retries", retried, words + costs, share)


def _lost_s(retries: Sequence[Retry]) -> float:
    return sum(retry.lost_s or 0.0 for retry in retries)


def _at(retries: Sequence[Retry]) -> str:
    """The line of the program in most of them."""
    place = Counter(retry.place for retry in retries).most_common(1)[0][0]
    return f" at {place}" if place else ""


def _finding(cause: Cause, retried: Sequence[_Retried], words: str, share: float) -> Finding:
    names = {one.path: f"rank {one.memory.rank}" if one.memory.rank >= 0 else one.path.name for one, _ in retried}
    where = listed(list(names.values()))
    ranks = tuple(one.memory.rank for one, _ in retried if one.memory.rank >= 0)
    return Finding(cause=cause, words=f"{where} {words}", share=share, where=where, ranks=ranks, source=str(next(iter(names))))
