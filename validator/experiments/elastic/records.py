"""Records: what processes note of a run that is to outlive some of them, a line each, by the clock that they all share.

Processes of one machine share time.perf_counter's clock on Linux. A process that is killed leaves half a line at most.
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
    """Something that a process on `host` noted. by: 'trainer', 'agent', 'supervisor' or 'injector'.

    step: how many steps are done; -1 where it does not matter. took_s: of what takes time and has ended. digest: of the
    parameters that a rank ends with. text: what went wrong.
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


class EventLog:
    """Where one process notes things. Each line is written at once, so that it is there whatever becomes of the process."""

    def __init__(self, folder: Path, host: int, by: str) -> None:
        self._path = folder / f"{by}-{host}{_SUFFIX}"
        self._fixed = {"host": host, "by": by, "pid": os.getpid()}

    def note(self, what: str, **fields: Any) -> None:
        """fields: as `LoggedEvent` has them."""
        line = json.dumps({"at_s": time.perf_counter(), "what": what, **self._fixed, **fields})
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def read(folder: Path) -> list[LoggedEvent]:
    """All that was noted until now, in order of time."""
    return sorted(chain(*map(_events, folder.glob(f"*{_SUFFIX}"))), key=lambda event: event.at_s)


def of_trainer(folder: Path, host: int) -> list[LoggedEvent]:
    """What the trainers of one host noted until now."""
    return list(_events(folder / f"trainer-{host}{_SUFFIX}"))


def size_bytes(folder: Path) -> int:
    """Of all that was noted until now: where it grows, something gets on."""
    return sum(path.stat().st_size for path in folder.glob(f"*{_SUFFIX}"))


def _events(path: Path) -> Iterator[LoggedEvent]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield LoggedEvent(**json.loads(line))
        except (ValueError, TypeError):
            # of who was killed while it wrote
            continue
