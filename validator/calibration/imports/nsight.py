"""Import of Nsight Systems' SQLite exports (`nsys export --type sqlite`): kernels, their launches and NVTX ranges of a process.

Tables: those of nsys's exporter. NCCL's kernels have no sizes there, so that their time counts and their bytes are unknown.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TracedCollective, TraceSpan
from scaleproof.validator.calibration.imports.names import collective_of_kernel, is_communication
from scaleproof.validator.calibration.imports.reading import ImportNotes

MAGIC: Final = b"SQLite format 3\0"
_EXPECTED: Final = "an export of Nsight Systems with CUDA kernels (nsys export --type sqlite)"
_NS: Final = 1e-9
_KERNELS: Final = """
    SELECT s.value, k.start, k.end, k.deviceId, k.correlationId, k.gridX, k.gridY, k.gridZ, {process}
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
"""
_COLUMNS: Final = "PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)"
_PROCESS: Final = "k.globalPid"
_LAUNCHES: Final = "SELECT correlationId, start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
# The lower bits of a thread's number are the thread's; the others are the number of its process.
_THREAD_BITS: Final = 24
_RANGES: Final = """
    SELECT COALESCE(n.text, s.value), n.start, n.end, n.globalTid
    FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.end IS NOT NULL
"""
_ABOUT: Final = {
    "host": "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'",
    "gpu": "SELECT name FROM TARGET_INFO_GPU",
}
# NVTX ranges of steps: 'ProfilerStep#3', 'step 3', 'iteration3', 'Training iteration 3'.
_STEP: Final = re.compile(r"^(?:\w+[ _-])?(?:profilerstep|step|iteration|iter)[ _#:-]*\d+$", re.I)
_FEWEST_STEPS: Final = 2


def read(path: Path, notes: ImportNotes) -> Trace:
    """Reads one process's kernels. Raises InputError if it is not such an export, or nothing in it takes time."""
    first, *others = read_all(path)
    if others:
        notes.add(f"{path}: kernels of {1 + len(others)} GPUs; those of GPU {first.device}, which has the most, are used")
    return first


def read_all(path: Path) -> list[Trace]:
    """Reads the kernels of each process and GPU of a node, those with the most kernels first. Raises InputError as `read`."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            has_process = any(row[1] == "globalPid" for row in base.execute(_COLUMNS))
            kernels = base.execute(_KERNELS.format(process=_PROCESS if has_process else 0)).fetchall()
            if not kernels:
                raise InputError(f"{path}: no CUDA kernels; expected {_EXPECTED}")
            counts = Counter((row[-1], row[3]) for row in kernels)
            return [
                _trace(path, base, [row for row in kernels if (row[-1], row[3]) == one], one)
                for one, _ in sorted(counts.items(), key=lambda item: -item[1])
            ]
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected {_EXPECTED}") from None


def _trace(path: Path, base: sqlite3.Connection, kernels: Sequence[Any], place: tuple[int, int]) -> Trace:
    process, device = place

    def is_own(thread: int) -> bool:
        return not process or thread >> _THREAD_BITS == process >> _THREAD_BITS

    launches = {row[0]: (row[1] * _NS, str(row[2])) for row in _rows(base, _LAUNCHES) if is_own(row[2])}
    trace = Trace(path, device=int(device))
    for name, start, end, _, correlation, *grid, _ in kernels:
        launched_s, thread = launches.get(correlation, (start * _NS, ""))
        exchange = None
        if is_communication(name):
            exchange = TracedCollective(collective_of_kernel(name), 0.0, "", "", (), 0)
        trace.works.append(DeviceWork(name, start * _NS, end * _NS, launched_s, thread, exchange, "", str(grid)))
    ranges = [
        TraceSpan(str(text), start * _NS, end * _NS, str(thread))
        for text, start, end, thread in _rows(base, _RANGES)
        if text and is_own(thread)
    ]
    trace.annotations = [span for span in ranges if not _STEP.match(span.name)]
    steps = sorted((span for span in ranges if _STEP.match(span.name)), key=lambda span: span.start_s)
    trace.has_steps = len(steps) >= _FEWEST_STEPS
    trace.steps = steps if trace.has_steps else [_whole(trace)]
    for field, query in _ABOUT.items():
        setattr(trace, field, next((str(row[0]) for row in _rows(base, query)), ""))
    return trace


def _whole(trace: Trace) -> TraceSpan:
    return TraceSpan("the whole trace", min(work.launched_s for work in trace.works), max(work.end_s for work in trace.works))


def _rows(base: sqlite3.Connection, query: str) -> Iterator[Any]:
    """Rows of a query; none if the export lacks the table."""
    try:
        yield from base.execute(query)
    except sqlite3.OperationalError:
        return
