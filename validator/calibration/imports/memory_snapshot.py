"""Import of memory snapshots of PyTorch: what a device has reserved and allocated, the lines of the program that hold the peak,
and retries of the allocator.

Format: the docstring of torch.cuda.memory._snapshot. The history has the last events only, and may be off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import SnapshotMemory
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.validator.calibration.imports.plain_data import as_mapping, place_of, rank_of
from scaleproof.validator.calibration.imports.reading import as_list, as_number

_Entry = Mapping[str, Any]
# Size of each block in use, and where it was allocated, by address.
_Live = dict[float | None, tuple[float, _Entry]]
EXPECTED: Final = "a snapshot of torch.cuda.memory._dump_snapshot"
_US: Final = 1e-6
_MOST_HOLDERS: Final = 3
# Segments that go back to the device and come from it, whole or in pages.
_FREED: Final = ("segment_free", "segment_unmap")
_GAINED: Final = ("segment_alloc", "segment_map")


class Retry(NamedTuple):
    """A request for which cached segments were freed. place: of the program. lost_s: until the next segment, None without
    clock. short_bytes: requested without success, 0 if the next segment was there."""

    place: str
    lost_s: float | None
    short_bytes: float = 0.0


class MemorySnapshot(NamedTuple):
    """Memory of a process, and retries of its allocator. history_s: that its events cover, 0 if unknown."""

    path: Path
    memory: SnapshotMemory
    retries: Sequence[Retry]
    history_s: float


def read(path: Path, document: object) -> MemorySnapshot:
    """The memory of the device that a process uses most. Raises InputError without any."""
    segments = [as_mapping(one) for one in as_list(as_mapping(document).get("segments"))]
    traces = [[as_mapping(one) for one in as_list(own)] for own in as_list(as_mapping(document).get("device_traces"))]
    reserved: Counter[int] = Counter({at: 0 for at, own in enumerate(traces) if own})
    for one in segments:
        reserved[_device(one)] += int(as_number(one.get("total_size")) or 0)
    if not reserved:
        raise InputError(f"{path}: no segments and no history; expected {EXPECTED} of a process that uses a GPU")
    device, reserved_bytes = reserved.most_common(1)[0]
    events = traces[device] if 0 <= device < len(traces) else []
    live = dict(_blocks([one for one in segments if _device(one) == device]))
    allocated_bytes = sum(size for size, _ in live.values())
    peak_bytes, live = _at_peak(events, live)
    holders: Counter[str] = Counter()
    for size, entry in live.values():
        holders[place_of(entry) or "unknown lines"] += int(size)
    retries = list(_retries(events))
    memory = SnapshotMemory(
        rank=rank_of(path, document), device=str(device), reserved_bytes=reserved_bytes, allocated_bytes=allocated_bytes,
        peak_bytes=peak_bytes, retries=sum(not retry.short_bytes for retry in retries),
        holders=tuple(f"{place} {format_bytes(size)}" for place, size in holders.most_common(_MOST_HOLDERS)),
    )  # fmt: skip
    times = [time for event in events if (time := as_number(event.get("time_us"))) is not None]
    return MemorySnapshot(path, memory, retries, _US * (max(times) - min(times)) if times else 0.0)


def _device(segment: _Entry) -> int:
    return int(as_number(segment.get("device")) or 0)


def _address(event: _Entry) -> float | None:
    return as_number(event.get("addr"))


def _at_peak(events: Sequence[_Entry], live: _Live) -> tuple[float, _Live]:
    """Bytes and blocks at the peak of the history. live: blocks after it."""
    signs = {"alloc": 1, "free_completed": -1}
    deltas = [signs.get(str(event.get("action")), 0) * (as_number(event.get("size")) or 0.0) for event in events]
    levels = sum(size for size, _ in live.values()) - sum(deltas) + np.cumsum([0.0, *deltas])
    peak = int(levels.argmax())
    # calls that allocated what is freed later
    last: dict[float | None, _Entry] = {}
    freed = {}
    for number, event in enumerate(events):
        if deltas[number] > 0:
            last[_address(event)] = event
        elif deltas[number] < 0:
            freed[number] = last.pop(_address(event), {})
    # from the end back to the peak
    for number in range(len(events) - 1, peak - 1, -1):
        if deltas[number] > 0:
            live.pop(_address(events[number]), None)
        elif deltas[number] < 0:
            live[_address(events[number])] = -deltas[number], freed[number]
    return float(levels[peak]), live


def _blocks(segments: Sequence[_Entry]) -> Iterator[tuple[float | None, tuple[float, _Entry]]]:
    """Sizes of the blocks in use, and the blocks, by address."""
    for segment in segments:
        at = as_number(segment.get("address")) or 0.0
        for block in map(as_mapping, as_list(segment.get("blocks"))):
            size = as_number(block.get("size")) or 0.0
            if block.get("state") != "inactive":
                yield as_number(block.get("address", at)), (as_number(block.get("requested_size")) or size, block)
            at += size


def _retries(events: Sequence[_Entry]) -> Iterator[Retry]:
    """Segments that are freed and followed by another one for the same call; those of empty_cache() are of another call."""
    first: _Entry | None = None
    for event in events:
        action = event.get("action")
        if action in _FREED:
            first = first or event
            continue
        if action == "oom":
            yield Retry(place_of(event), None, as_number(event.get("size")) or 0.0)
        elif first is not None and action in _GAINED and first.get("frames") == event.get("frames"):
            begin, end = as_number(first.get("time_us")), as_number(event.get("time_us"))
            yield Retry(place_of(event), None if begin is None or end is None else max(0.0, _US * (end - begin)))
        first = None
