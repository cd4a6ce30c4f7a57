"""Import of what DeepSpeed's communication logger writes (comms_logger): each call (verbose), or a summary with waiting.

Formats: deepspeed/utils/comms_logging.py. A summary counts from the start of the job, so that the last one of a log is used.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

_CALL: Final = re.compile(
    r"\brank=(\d+) \| comm op: (\w+) .*?\btime \(ms\): (\d+\.?\d*) \| msg size: ([\d.]+ \w+)|^(Comm\. Op +Message Size .*)"
)
# Host that the launcher writes before each line, and the clock of Python's logging.
_BEGIN: Final = re.compile(r"^(?:([\w.-]+): )?\[(\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)(?:,\d{3})?)")
_OP: Final = re.compile(r"^(\w+)(?: \| .*)?$")
_ROW: Final = re.compile(r"^ {20}([\d.]+ \w+) +\d+ +(\d+\.?\d*) +(\d+\.?\d*) ")
_WAITING: Final = "Total straggler(ms)"


class LoggedCall(NamedTuple):
    """A call of a collective. name: with its size. end_s: on the clock of its host, 0 if unknown. time: as in the log."""

    name: str
    seconds: float
    end_s: float
    time: str


class LoggedWaiting(NamedTuple):
    """Sums of all calls of a collective of one size. waiting_s: for ranks that came later."""

    name: str
    seconds: float
    waiting_s: float


@dataclass
class CommsLog:
    """Logged communication. calls: of each rank, one by one; hosts: of ranks, where the log has them. waits: of the last
    summary with waiting."""

    path: Path
    calls: dict[int, list[LoggedCall]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    waits: list[LoggedWaiting] = field(default_factory=list)


def read(path: Path, text: str) -> CommsLog:
    """The logged communication, which may be none."""
    log, op, is_waiting = CommsLog(path), "", False
    for line in text.splitlines():
        if match := _CALL.search(line):
            is_waiting = _WAITING in (match[5] or "")
            log.waits = [] if is_waiting else log.waits
            if match[2]:
                begin, rank = _BEGIN.match(line), int(match[1])
                end_s = _clock_s(begin[2]) if begin else 0.0
                call = LoggedCall(f"{match[2]} of {match[4]}", 1e-3 * float(match[3]), end_s, begin[3] if begin else "")
                log.calls.setdefault(rank, []).append(call)
                log.hosts[rank] = begin[1] or "" if begin else ""
        elif is_waiting and (row := _ROW.match(line)):
            log.waits.append(LoggedWaiting(f"{op} of {row[1]}", 1e-3 * float(row[2]), 1e-3 * float(row[3])))
        elif is_waiting:
            is_waiting = (named := _OP.match(line)) is not None
            op = named[1] if named else ""
    return log


def _clock_s(text: str) -> float:
    with suppress(ValueError):
        return datetime.fromisoformat(text.replace(",", ".")).replace(tzinfo=UTC).timestamp()
    return 0.0
