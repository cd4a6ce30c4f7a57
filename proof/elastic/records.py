"""Log of events of processes, some of which are killed: one line per event, with times of a common clock.

Processes of one machine share the clock of time.perf_counter on Linux. A killed process leaves at most one incomplete line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

_SUFFIX: Final = ".jsonl"
INJECTOR: Final = -1


@dataclass(frozen=True)
class LoggedEvent:
    """An event of a process on `host`. by: 'trainer', 'agent', 'supervisor' or 'injector'.

    step: number of steps done; -1 if it does not apply. took_s: duration of what has ended. digest: of a rank's final
    parameters. text: of an error or an event. ranks: of the group. loss: the rank's part of the step's mean loss.
    """

    at_s: float
    host: int
    by: str
    what: str
    pid: int
    step: int = -1
    rank: int = -1
    took_s: float = 0.0
    digest: str = ""
    text: str = ""
    ranks: int = 0
    loss: float = 0.0


class EventLog:
    """Log of one process. Each line is written immediately, so that it survives the process."""

    def __init__(self, folder: Path, host: int, by: str) -> None:
        self._path = folder / f"{by}-{host}{_SUFFIX}"
        self._fixed = {"host": host, "by": by, "pid": os.getpid()}

    def note(self, what: str, **fields: Any) -> None:
        """Logs an event; fields: of `LoggedEvent`."""
        line = json.dumps({"at_s": time.perf_counter(), "what": what, **self._fixed, **fields})
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def read(folder: Path) -> list[LoggedEvent]:
    """All events so far, in order of time."""
    return sorted(chain(*map(_events, folder.glob(f"*{_SUFFIX}"))), key=lambda event: event.at_s)


def of_trainer(folder: Path, host: int) -> list[LoggedEvent]:
    """Events of the trainers of one host so far."""
    return list(_events(folder / f"trainer-{host}{_SUFFIX}"))


def size_bytes(folder: Path) -> int:
    """Bytes of all logs so far; growth shows progress."""
    return sum(path.stat().st_size for path in folder.glob(f"*{_SUFFIX}"))


def _events(path: Path) -> Iterator[LoggedEvent]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield LoggedEvent(**json.loads(line))
        except (ValueError, TypeError):
            # incomplete line of a killed process
            continue
