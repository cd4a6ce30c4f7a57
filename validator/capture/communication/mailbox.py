"""Values that ranks send to one another: written to a folder, in which receivers wait for them.

Only integers and objects are exchanged; floats that are received are unknown. A rank that waits for one which nobody plays
writes a request, so that it is started.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

_POLL_S: Final = 0.002
_REQUEST: Final = "needs-"


class Mailbox:
    """The mailbox of a rank. folder: of all ranks of a capture."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._counts: Counter[tuple[str, int, int]] = Counter()

    def put(self, channel: str, target: int, value: Any) -> None:
        """Leaves a value for a rank, or for all others with `target` −1."""
        path = self._path(channel, self._rank, target)
        aside = path.with_suffix(".part")
        aside.write_bytes(pickle.dumps(value))
        aside.replace(path)

    def get(self, channel: str, source: int, target: int) -> Any:
        """Waits for the value that `source` leaves for `target`, or for all."""
        path = self._path(channel, source, target)
        if not path.exists():
            (self._folder / f"{_REQUEST}{source}").touch()
        while not path.exists():
            time.sleep(_POLL_S)
        return pickle.loads(path.read_bytes())  # noqa: S301 - written by ranks of the same capture

    def _path(self, channel: str, source: int, target: int) -> Path:
        key = channel, source, target
        self._counts[key] += 1
        return self._folder / f"{channel}-{source}-{target}-{self._counts[key]}.value"


def requested(folder: Path) -> set[int]:
    """Ranks that others wait for."""
    return {int(name.removeprefix(_REQUEST)) for name in os.listdir(folder) if name.startswith(_REQUEST)}
