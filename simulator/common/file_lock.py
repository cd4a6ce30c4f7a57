"""Locks: while one run writes to a folder or a file, no other does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from scaleproof.simulator.common.errors import InputError

# How long those wait for others that are done in a moment themselves.
PATIENCE_S: Final = 10.0
# How often one looks whether what it waits for is free.
_LOOK_S: Final = 0.05


def locked_folder(folder: Path, who: str, patience_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
    """Keeps other runs from writing to a folder, which is made where it is not there.

    who: what holds it, such as "a sweep", for those that it is refused to. patience_s: how long to wait for another's end.
    Raises InputError that says who holds it.
    """
    return _locked(folder / ".lock", folder, who, patience_s)


def locked_file(file: Path, who: str, patience_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
    """The same for a file and what goes with it."""
    return _locked(file.with_name(f".{file.name}.lock"), file, who, patience_s)


@contextlib.contextmanager
def _locked(lock: Path, what: Path, who: str, patience_s: float) -> Iterator[None]:
    """The system lets the lock go whatever becomes of this process; its file is gone once nobody holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + patience_s
    while (file := _taken(lock, what, last=time.monotonic() >= until_s)) is None:
        time.sleep(_LOOK_S)
    with file:
        file.truncate(0)
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        file.write(f"{who} (process {os.getpid()} on {socket.gethostname()}, since {since})\n")
        file.flush()
        try:
            yield
        finally:
            # before others can have it: whoever waits sees that the file that it has opened is no longer there
            lock.unlink(missing_ok=True)


def _taken(lock: Path, what: Path, last: bool) -> IO[str] | None:
    """The open file of a lock that is ours now, or None where it is to be tried again. last: it is not. Raises InputError."""
    file = lock.open("a+", encoding="utf-8", errors="replace")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        by = file.read(200).strip() or "another run"
        file.close()
        if last:
            raise InputError(f"{what}: {by} writes to it; wait for its end, or choose another place") from None
        return None
    except OSError as error:
        file.close()
        raise InputError(f"{what}: its file system cannot lock files ({error.strerror}); choose another place") from None
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), lock.stat())
    except OSError:
        is_there = False
    if not is_there:
        file.close()
        return _taken(lock, what, last)
    return file
