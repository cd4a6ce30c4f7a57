"""Import of dumps of PyTorch's flight recorder: which collectives each rank has entered and finished, by process group.

Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, pickled (TORCH_NCCL_DEBUG_INFO_TEMP_FILE) or as JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.plain_data import as_mapping, place_of, rank_of
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_number

EXPECTED: Final = "a dump of PyTorch's flight recorder (nccl_trace_rank_N)"
_NS: Final = 1e-9


class RecordedCall(NamedTuple):
    """A collective that a rank has entered. number: in its group. is_complete: whether it has finished. created_s: since 1970.
    place: of the program, 'train.py:88', "" if unknown."""

    number: int
    op: str
    sizes: str
    is_complete: bool
    created_s: float
    place: str


@dataclass
class FlightDump:
    """Dump of a rank. groups: the last collectives by group, in order. members: of each group, empty if unknown. names: of
    groups, in words."""

    path: Path
    rank: int
    groups: dict[str, list[RecordedCall]] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def read(path: Path, document: Any, notes: ImportNotes) -> FlightDump:
    """A rank's dump. document: what its file contains. Raises InputError if it is not one."""
    if isinstance(document, list | tuple):
        # torch 2.2 writes the list of entries alone
        document = {"entries": document}
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list | tuple):
        raise InputError(f"{path}: no list of entries; expected {EXPECTED}")
    dump = FlightDump(path, rank_of(path, document))
    damaged = sum(not _add(dump, entry) for entry in entries)
    if damaged:
        notes.add(f"{path}: {damaged} of {len(entries)} entries are messages, or have no group and number; left out")
    for group, about in as_mapping(document.get("pg_config")).items():
        numbers = tuple(int(number) for number in re.findall(r"\d+", str(as_mapping(about).get("ranks", ""))))
        dump.members[str(group)] = numbers
        dump.names[str(group)] = str(as_mapping(about).get("desc") or f"group {group}")
    for calls in dump.groups.values():
        calls.sort(key=lambda call: call.number)
    return dump


def _add(dump: FlightDump, entry: object) -> bool:
    """Adds an entry; False for messages and damaged entries."""
    about = as_mapping(entry)
    group = about.get("process_group", about.get("pg_name"))
    name = str(group[0]) if isinstance(group, list | tuple) and group else str(group or about.get("pg_id", ""))
    number = as_number(about.get("collective_seq_id", about.get("seq_id")))
    if number is None or not name or about.get("is_p2p"):
        return False
    op = str(about.get("profiling_name", "")).partition(":")[2] or "a collective"
    created_s = (as_number(about.get("time_created_ns")) or 0.0) * _NS
    is_complete = about.get("state") == "completed" or bool(about.get("retired") and about.get("time_discovered_completed_ns"))
    call = RecordedCall(int(number), op, str(about.get("input_sizes", "")), is_complete, created_s, place_of(about))
    dump.groups.setdefault(name, []).append(call)
    return True
