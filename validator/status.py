"""Status: what each rank is doing right now, in a file that all processes of a run map into memory.

One fixed-size record per rank. Writing one costs well under a microsecond, so every phase can be told, and the launcher
knows where a rank was when it died or since when it hangs.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

from simulator.run import Phase

STARTING: Final = -1
BETWEEN_PHASES: Final = -2
FINISHED: Final = -3
# Steps are counted from 1; warm-up steps are 0 and below.
NO_STEP: Final = -(2**31)

_RECORD: Final = struct.Struct("<iiiid")  # pid, phase, step, padding, time
_LABELS: Final = {STARTING: "start-up", BETWEEN_PHASES: "work between phases", FINISHED: "shut-down"}


class Activity(NamedTuple):
    """What a rank does since `since_s` (time.monotonic); `phase` is a Phase or one of the constants above."""

    pid: int
    phase: int
    step: int
    since_s: float

    @property
    def waits_for_others(self) -> bool:
        return self.phase >= Phase.SYNCHRONISE

    def __str__(self) -> str:
        """'backward of step 4', for messages."""
        if self.step == NO_STEP and self.phase == BETWEEN_PHASES:
            return "its work"
        label = _LABELS.get(self.phase) or Phase(self.phase).label
        if self.step == NO_STEP:
            return label
        return f"{label} of step {self.step}" if self.step >= 1 else f"{label} of a warm-up step"


class Board:
    """The records of all ranks, mapped from a file or kept in this process alone."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path, ranks: int) -> Self:
        """A new file in which every rank is starting now."""
        path.write_bytes(_RECORD.pack(0, STARTING, NO_STEP, 0, time.monotonic()) * ranks)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), 0))

    @classmethod
    def private(cls) -> Self:
        """A record that only this process sees, where another launcher than ours watches the ranks."""
        return cls(bytearray(_RECORD.size))

    def write(self, index: int, pid: int, phase: int, step: int) -> None:
        _RECORD.pack_into(self._memory, index * _RECORD.size, pid, phase, step, 0, time.monotonic())

    def read(self, index: int) -> Activity:
        pid, phase, step, _, since_s = _RECORD.unpack_from(self._memory, index * _RECORD.size)
        return Activity(pid, phase, step, since_s)

    def close(self) -> None:
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()


class Status:
    """One rank's own record: tells phase and step as they change."""

    def __init__(self, board: Board, index: int, pid: int) -> None:
        self._board = board
        self._index = index
        self._pid = pid
        self._step = NO_STEP

    def enter(self, phase: int) -> None:
        """The rank is in `phase` from now on."""
        self._board.write(self._index, self._pid, phase, self._step)

    def begin_step(self, step: int) -> None:
        """The rank works on `step` from now on."""
        self._step = step
        self.enter(BETWEEN_PHASES)

    @property
    def activity(self) -> Activity:
        return self._board.read(self._index)
