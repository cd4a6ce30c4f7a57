"""The kernels that ranks launch while they play, by which each knows when its own are complete.

Servers take what arrives next, so that a thread that waits must not go on before its kernels could be complete.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from tests.validator.gpus.kernels import Kernel
from tests.validator.gpus.replay import MismatchError, Replay

# File that a rank leaves when it fails, so that others do not wait for it.
FAILED: Final = "failed"
_POLL_S: Final = 0.002


class Published:
    """The kernels of all ranks so far. patience_s: after which a rank goes on although its kernels are not complete, and no
    longer waits, so that all is logged."""

    def __init__(self, folder: Path, rank: int, ranks: int, patience_s: float) -> None:
        self._failed = folder / FAILED
        paths = [folder / f"kernels-{number}" for number in range(ranks)]
        self._rank, self._patience_s = rank, patience_s
        for path in paths:
            path.touch()
        self._own = paths[rank].open("ab", buffering=0)
        self._files = [path.open("rb") for path in paths]
        self._replay = Replay(ranks)
        self._lock = threading.Lock()

    def add(self, kernel: Kernel) -> None:
        """Publishes a kernel of this rank."""
        self._own.write(pickle.dumps(kernel))

    def wait(self, kernels: frozenset[int]) -> None:
        """Returns once kernels of this rank are complete. Raises RuntimeError where another rank has failed."""
        until_s = time.monotonic() + self._patience_s
        while not self._are_complete(kernels):
            if self._failed.exists():
                raise RuntimeError("another rank has failed")
            if time.monotonic() > until_s:
                self._patience_s = 0.0
                return
            time.sleep(_POLL_S)

    def _are_complete(self, kernels: frozenset[int]) -> bool:
        with self._lock:
            complete = self._replay.complete(self._rank)
            if kernels <= complete:
                return True
            try:
                for rank, file in enumerate(self._files):
                    self._replay.add(rank, _read(file))
                self._replay.advance()
            except MismatchError:
                self._patience_s = 0.0
                return True
            return kernels <= complete


def _read(file: BinaryIO) -> Iterator[Kernel]:
    """What has been written since the last call."""
    while True:
        place = file.tell()
        try:
            yield pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            file.seek(place)
            return
