"""Reading of a job's files of any kind. Files that cannot be read are noted, and the others are still used."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import counted
from scaleproof.validator.calibration.imports import (
    comms_log,
    device_samples,
    flight_recorder,
    memory_snapshot,
    nccl_tests,
    nsight,
    plain_data,
)
from scaleproof.validator.calibration.imports.comms_log import CommsLog
from scaleproof.validator.calibration.imports.device_samples import DeviceSamples
from scaleproof.validator.calibration.imports.flight_recorder import FlightDump
from scaleproof.validator.calibration.imports.kineto import Trace
from scaleproof.validator.calibration.imports.memory_snapshot import MemorySnapshot
from scaleproof.validator.calibration.imports.nccl_tests import TestedGroup
from scaleproof.validator.calibration.imports.reading import ImportNotes, read_text
from scaleproof.validator.reconciliation.jobs import logs, metrics_csv, tensorboard, trace_run
from scaleproof.validator.reconciliation.jobs.logs import JobLog
from scaleproof.validator.reconciliation.jobs.trace_spans import TracedRank

_HEAD_BYTES: Final = 2**16
_GZIP: Final = b"\x1f\x8b"
_NCCL_TESTS: Final = re.compile(r"^.{0,60}#\s*(?:nThread|Rank\s+\d+\s|Collective test starting)", re.M)
# Logs may begin with brackets, and with mappings of Python.
_JSON: Final = re.compile(r'\s*(?:\[\s*)?\{\s*"|\s*\[\s*\]')
# Traces, too, have the configuration of groups, so that it is no mark of a dump.
_DUMP_KEYS: Final = re.compile(r'"(?:pg_status|record_id|nccl_comm_state|entries)"\s*:')
_TRACE_KEYS: Final = re.compile(r'"(?:schemaVersion|traceEvents)"\s*:')


@dataclass
class JobEvidence:
    """What a job's files contain. counts: number of files of each kind, in words."""

    ranks: list[TracedRank] = field(default_factory=list)
    logs: list[JobLog] = field(default_factory=list)
    tests: list[TestedGroup] = field(default_factory=list)
    devices: list[DeviceSamples] = field(default_factory=list)
    dumps: list[FlightDump] = field(default_factory=list)
    comms: list[CommsLog] = field(default_factory=list)
    memory: list[MemorySnapshot] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    worlds: dict[str, int] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """'16 traces', '1 Megatron-LM log'."""
        return tuple(counted(number, kind) for kind, number in self.counts.items())


def read(paths: Sequence[Path], report: Callable[[str], None], notes: ImportNotes) -> JobEvidence:
    """Reads files, and those in folders. Raises InputError if none can be used, with the reason of each."""
    found = JobEvidence()
    problems: list[str] = []
    files = [file for path in paths for file in (_inside(path) if path.is_dir() else [path])]
    for number, path in enumerate(files, start=1):
        report(f"reading {path} ({number} of {len(files)})")
        try:
            _add(found, path, len(files), notes)
        except InputError as error:
            problems.append(str(error))
    if not found.counts:
        raise InputError("\n".join(problems) or "no files in these folders; give traces, logs, or samples of devices")
    for problem in problems:
        notes.add(f"left out: {problem}")
    found.ranks = _one_job(found, notes)
    return found


def _inside(folder: Path) -> list[Path]:
    """The files of a folder, without hidden ones and other folders."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _add(found: JobEvidence, path: Path, files: int, notes: ImportNotes) -> None:
    """Adds what a file contains. Raises InputError."""
    head = _head(path)
    text = head.decode("utf-8", errors="replace")
    if head.startswith(b"\x80") or (_JSON.match(text) and _DUMP_KEYS.search(text) and not _TRACE_KEYS.search(text)):
        document = plain_data.read(path, f"{flight_recorder.EXPECTED} or {memory_snapshot.EXPECTED}")
        if isinstance(document, dict) and "segments" in document:
            found.memory.append(memory_snapshot.read(path, document))
            found.counts["memory snapshot"] += 1
        else:
            found.dumps.append(flight_recorder.read(path, document, notes))
            found.counts["flight-recorder dump"] += 1
    elif metrics_csv.is_table(text):
        _add_log(found, path, notes)
    elif head.startswith(nsight.MAGIC) or trace_run.is_chakra(path) or _JSON.match(text):
        is_node = head.startswith(nsight.MAGIC)
        traces = nsight.read_all(path) if is_node else trace_run.read([path], lambda _: None, notes, files)
        for trace in sorted(traces, key=lambda one: one.device):
            # a report of a node has ranks in the order of their devices
            number = trace_run.number_of(trace, len(found.ranks)) if len(traces) == 1 else len(found.ranks)
            rank = _traced(trace, number, notes)
            found.worlds[rank.source] = trace.world
            found.ranks.append(rank)
            found.counts["trace"] += 1
    elif device_samples.is_table(text):
        found.devices += device_samples.read(path, notes)
        found.counts["device table"] += 1
    elif _NCCL_TESTS.search(text):
        groups = nccl_tests.tested_groups(path, notes)
        if not groups:
            raise InputError(f"{path}: no time of a collective found")
        found.tests += groups
        found.counts["nccl-tests log"] += 1
    elif tensorboard.is_file(path):
        _add_log(found, path, notes)
    else:
        comms = comms_log.read(path, read_text(path, "a log"))
        if comms.calls or comms.waits:
            found.comms.append(comms)
            found.counts["communication log"] += 1
        try:
            _add_log(found, path, notes)
        except InputError:
            if not (comms.calls or comms.waits):
                raise


def _add_log(found: JobEvidence, path: Path, notes: ImportNotes) -> None:
    log = logs.read(path, None, notes)
    found.logs.append(log)
    found.counts[f"{log.software} log"] += 1


def _traced(trace: Trace, number: int, notes: ImportNotes) -> TracedRank:
    """The steps of a trace; all of it as one step if none are found."""
    try:
        return trace_run.traced(trace, number)
    except InputError:
        if trace.has_steps:
            raise
        notes.add(f"{trace.path}: no steps found; the whole trace is compared as one (call profiler.step() after each step)")
        trace.has_steps = True
        return trace_run.traced(trace, number)


def _head(path: Path) -> bytes:
    """The first bytes of a file after unpacking. Raises InputError if it is empty or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_GZIP):
            with gzip.open(path) as packed:
                head = packed.read1(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; give a readable file") from None
    if not head.strip():
        raise InputError(f"{path}:1: the file is empty; copy it again")
    return head


def _one_job(found: JobEvidence, notes: ImportNotes) -> list[TracedRank]:
    """The traced ranks in order, without those of another job and second traces of a rank."""
    ranks: dict[int, TracedRank] = {}
    known = Counter(world for world in found.worlds.values() if world)
    usual = known.most_common(1)[0][0] if known else 0
    for one in found.ranks:
        world = found.worlds[one.source]
        if world not in (0, usual):
            notes.add(f"{one.source}: of a job of {world} ranks, the others are of {usual}; left out, diagnose it separately")
        elif one.rank in ranks:
            first = ranks[one.rank].source
            notes.add(f"{one.source}: a second trace of rank {one.rank}, after {first}; left out, as if of another job")
        else:
            ranks[one.rank] = one
    result = [ranks[number] for number in sorted(ranks)]
    steps = {len(one.steps.works) for one in result}
    if len(steps) > 1:
        notes.add(f"traces have {min(steps)} to {max(steps)} steps; the first {min(steps)} of each are compared")
    missing = usual - len(result)
    if result and missing > 0:
        notes.add(f"traces of {len(result)} of {usual} ranks: the others cannot be named")
    if len(result) == 1 and usual != 1:
        notes.add("one rank's trace has no peers to compare with; give the traces of several ranks")
    return result
