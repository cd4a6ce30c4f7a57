"""File locks: at most one process writes to a folder or a file at a time."""

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

# How long to wait for a lock that others hold only briefly.
PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.05


def locked_folder(folder: Path, holder: str, patience_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
    """Locks a folder against other processes, and creates it if needed.

    holder: the activity that holds the lock, such as "a sweep", for the error message of other processes. patience_s: seconds
    to wait for another holder. Raises InputError, which names the other holder.
    """
    return _locked(folder / ".lock", folder, holder, patience_s)


def locked_file(file: Path, holder: str, patience_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
    """Locks a file against other processes; parameters and errors as in `locked_folder`."""
    return _locked(file.with_name(f".{file.name}.lock"), file, holder, patience_s)


@contextlib.contextmanager
def _locked(lock: Path, target: Path, holder: str, patience_s: float) -> Iterator[None]:
    """The system releases the lock when this process ends, however it ends; the lock file is removed on release."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + patience_s
    while (file := _acquired(lock, target, last_try=time.monotonic() >= until_s)) is None:
        time.sleep(_POLL_S)
    with file:
        file.truncate(0)
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        file.write(f"{holder} (process {os.getpid()} on {socket.gethostname()}, since {since})\n")
        file.flush()
        try:
            yield
        finally:
            # removed before it is unlocked, so that a waiting process sees that the file it opened is gone
            lock.unlink(missing_ok=True)


def _acquired(lock: Path, target: Path, last_try: bool) -> IO[str] | None:
    """The open file of an acquired lock, or None if it is taken. Raises InputError if it is taken at the last try."""
    file = lock.open("a+", encoding="utf-8", errors="replace")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        other = file.read(200).strip() or "another run"
        file.close()
        if last_try:
            raise InputError(f"{target}: {other} writes to it; wait for its end, or choose another place") from None
        return None
    except OSError as error:
        file.close()
        raise InputError(f"{target}: its file system cannot lock files ({error.strerror}); choose another place") from None
    try:
        is_current = os.path.samestat(os.fstat(file.fileno()), lock.stat())
    except OSError:
        is_current = False
    if not is_current:
        file.close()
        return _acquired(lock, target, last_try)
    return file
