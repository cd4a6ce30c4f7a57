"""Files that are never half-written."""

from __future__ import annotations

import errno
import functools
import os
import platform
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically: to a temporary file that is then renamed.

    The first time in a folder, temporary files that killed processes left in it are deleted. Raises OSError with the path.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete_left(path.parent.absolute())
    # with the machine and the process, since another process may write the same file
    aside = path.with_name(f".{path.name}{_writer(os.getpid())}")
    try:
        aside.write_bytes(content)
        with aside.open("rb") as file:
            # else the content may be lost after a power failure, though the file has been renamed
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        # a full disk is reported without a path
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        # an incomplete file would occupy the disk
        aside.unlink(missing_ok=True)


@functools.lru_cache(maxsize=1024)
def _delete_left(folder: Path) -> None:
    """Deletes temporary files whose process on this machine has ended; once per folder, since large ones take long to list."""
    for left in folder.glob(".*.part"):
        process = left.name.split(".")[-2]
        if process.isdecimal() and left.name.endswith(_writer(int(process))) and _has_ended(int(process)):
            left.unlink(missing_ok=True)


def _writer(process: int) -> str:
    """End of the names of temporary files that a process of this machine writes."""
    return f".{platform.node()}.{process}.part"


def _has_ended(process: int) -> bool:
    """Whether no process of this machine has the number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
