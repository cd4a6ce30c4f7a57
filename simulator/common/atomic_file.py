"""Files that are never half-written."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically: to a temporary file that is then renamed.

    Temporary files that killed processes left of this file are deleted. Raises OSError with the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if _has_ended(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    # with the process id, since another process may write the same file
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
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


def _has_ended(process: str) -> bool:
    """Whether no process of this machine has the number."""
    try:
        os.kill(int(process), 0)
    except (ValueError, PermissionError):
        return False
    except ProcessLookupError:
        return True
    return False
