"""Values that ranks send to one another: written to a folder, in which receivers wait for them.

Only integers and objects are exchanged; floats that are received are unknown. A rank that waits for one which nobody plays
writes a request, so that it is started.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

# The target of a value for all other ranks.
ALL: Final = -1
_POLL_S: Final = 0.002
_REQUEST: Final = "needs-"
_ENDED: Final = "ended-"
# How long a value or a file is waited for that no rank may write.
PATIENCE_S: Final = 20.0


class NoValueError(Exception):
    """A rank ended before it sent what another one waits for."""


class Mailbox:
    """The mailbox of a rank. folder: of all ranks of a capture."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._counts: Counter[tuple[str, int, int]] = Counter()

    def put(self, channel: str, target: int, value: Any) -> None:
        """Leaves a value for a rank, or for all others."""
        _write(self._path(channel, self._rank, target), value)

    def get(self, channel: str, source: int, target: int) -> Any:
        """Waits for the value that `source` leaves for `target`, or for all. Raises NoValueError if that rank has ended."""
        path = self._path(channel, source, target)
        self._request(path, source)
        if not wait_for(path, self._folder, source):
            raise NoValueError(f"rank {self._rank} waits for a value of rank {source}, which ended without sending it; "
                               "ranks that communicate must take the same steps")  # fmt: skip
        return _read(path)

    def share(self, name: str, value: Any) -> None:
        """Sets a value for all ranks, in place of the one before."""
        _write(self._folder / f"shared-{name}.value", value)

    def shared(self, name: str, source: int) -> Any:
        """The value that a rank sets for all, perhaps `source`; None if nobody does within seconds."""
        path = self._folder / f"shared-{name}.value"
        self._request(path, source)
        return _read(path) if wait_for(path, self._folder, source, PATIENCE_S * (source != self._rank)) else None

    def end(self) -> None:
        """Notes that this rank sends nothing more."""
        (self._folder / f"{_ENDED}{self._rank}").touch()

    def _request(self, path: Path, source: int) -> None:
        if not path.exists() and source != self._rank:
            (self._folder / f"{_REQUEST}{source}").touch()

    def _path(self, channel: str, source: int, target: int) -> Path:
        key = channel, source, target
        self._counts[key] += 1
        return self._folder / f"{channel}-{source}-{target}-{self._counts[key]}.value"


def _write(path: Path, value: Any) -> None:
    aside = path.with_suffix(f".{os.getpid()}.part")
    aside.write_bytes(pickle.dumps(value))
    aside.replace(path)


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - written by ranks of the same capture


def wait_for(path: str | os.PathLike[str], folder: Path, rank: int, patience_s: float = math.inf) -> bool:
    """Waits for a file until a rank, which may write it, has recorded its step and ended; returns whether the file exists.
    folder: of the capture."""
    deadline_s = time.monotonic() + patience_s
    while not os.path.exists(path):
        if time.monotonic() >= deadline_s or (folder / f"{_ENDED}{rank}").exists():
            return os.path.exists(path)
        time.sleep(_POLL_S)
    return True


def requested(folder: Path) -> set[int]:
    """Ranks that others wait for."""
    return {int(name.removeprefix(_REQUEST)) for name in os.listdir(folder) if name.startswith(_REQUEST)}
