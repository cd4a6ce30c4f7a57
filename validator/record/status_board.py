"""Status board: the current activity of each rank, in a file that all processes of a run map into memory.

One fixed-size record per rank. Writing one takes well under a microsecond, so every phase can be reported, and the launcher
knows what a rank was doing when it died, or since when it hangs.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

from scaleproof.simulator.common.spans import Phase

STARTING: Final = -1
BETWEEN_PHASES: Final = -2
FINISHED: Final = -3
# Steps are counted from 1; warm-up steps are 0 and below.
NO_STEP: Final = -(2**31)

_PHASE, _STEP, _SINCE = range(3)
_FIELDS: Final = 3
_RECORD_BYTES: Final = 8 * _FIELDS
_LABELS: Final = {STARTING: "start-up", BETWEEN_PHASES: "work between phases", FINISHED: "shut-down"}


class Activity(NamedTuple):
    """Activity of a rank since `since_s` (time.monotonic); `phase` is a Phase or one of the constants above."""

    phase: int
    step: int
    since_s: float

    @property
    def waits_for_others(self) -> bool:
        """Whether the rank communicates or has finished, and so may wait for other ranks."""
        return self.phase >= Phase.SYNCHRONISE or self.phase == FINISHED

    def __str__(self) -> str:
        """'backward of step 4', for messages."""
        if self.step == NO_STEP and self.phase == BETWEEN_PHASES:
            return "its work"
        label = _LABELS.get(self.phase) or Phase(self.phase).label
        if self.step == NO_STEP:
            return label
        return f"{label} of step {self.step}" if self.step >= 1 else f"{label} of a warm-up step"


class Board:
    """The records of all ranks, mapped from a file or kept in this process alone.

    A record is three doubles, each written atomically: a reader never sees half a number.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._fields = memoryview(memory).cast("d")

    @classmethod
    def create(cls, path: Path, ranks: int) -> Self:
        """Creates a file in which every rank is starting."""
        path.write_bytes(bytes(ranks * _RECORD_BYTES))
        board = cls.open(path)
        for rank in range(ranks):
            board.write(rank, STARTING, NO_STEP)
        return board

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps an existing file."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), 0))

    @classmethod
    def private(cls) -> Self:
        """A record in this process's memory, for ranks that another launcher watches."""
        board = cls(bytearray(_RECORD_BYTES))
        board.write(0, BETWEEN_PHASES, NO_STEP)
        return board

    def write(self, rank: int, phase: int, step: int) -> None:
        """Records the phase and step of a rank from now on."""
        fields, first = self._fields, rank * _FIELDS
        # the time is written first: otherwise a new phase with an old time would look like a hang
        fields[first + _SINCE] = time.monotonic()
        fields[first + _PHASE] = phase
        fields[first + _STEP] = step

    def read(self, rank: int) -> Activity:
        """The current activity of a rank."""
        phase, step, since_s = self._fields[rank * _FIELDS : (rank + 1) * _FIELDS]
        return Activity(int(phase), int(step), since_s)

    def close(self) -> None:
        """Releases the shared memory."""
        self._fields.release()
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()


class Status:
    """One rank's own record, updated when its phase or step changes."""

    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self._index = index
        self._step = NO_STEP

    def enter(self, phase: int) -> None:
        """Records that the rank is in `phase` from now on."""
        self._board.write(self._index, phase, self._step)

    def begin_step(self, step: int) -> None:
        """Records that the rank works on `step` from now on."""
        self._step = step
        self.enter(BETWEEN_PHASES)

    @property
    def activity(self) -> Activity:
        """The current activity of this rank."""
        return self._board.read(self._index)
