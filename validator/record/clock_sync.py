"""Clocks: times of ranks on different machines, told by one clock.

Processes of one machine share time.perf_counter's clock on Linux. Between machines it is off by any amount and strays by some
10 to 50 µs per second; messages there and back tell both, before training and after it. Step times do not depend on it
beyond that.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from scaleproof.validator.launch.rank import exchange, here
from scaleproof.validator.record.clock_correction import Answer, Correction, Reading, between, read

_ROUNDS: Final = 32
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def machine() -> str:
    """The same for processes that share a clock, and different on different machines."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()


class Alignment:
    """This rank's clock against rank 0's. All ranks make one, and call its methods, together.

    own_machine: of the ranks of a machine the first asks rank 0, for all of them.
    """

    def __init__(self, own_machine: str) -> None:
        self._own = own_machine
        self._machines: Final[list[str]] = exchange(own_machine)
        elsewhere = dict.fromkeys(name for name in self._machines if name != self._machines[0])
        self._asking: Final = [self._machines.index(name) for name in elsewhere]
        # gloo's messages are the host's, as its clock is
        self._group = dist.new_group(backend="gloo") if self._asking else None
        self._first: Final = self._read()

    def finish(self) -> Correction | None:
        """What to correct this rank's times by to have rank 0's; nothing on its machine."""
        last = self._read()
        if self._group is not None:
            dist.destroy_process_group(self._group)
        return None if self._first is None or last is None else between(self._first, last)

    def _read(self) -> Reading | None:
        """How far this machine's clock is from that of rank 0's machine now; nothing on that."""
        if self._group is None:
            return None
        own = None
        for rank in self._asking:
            if here().rank == 0:
                _answer(rank, self._group)
            elif here().rank == rank:
                own = read(_ask(self._group))
        everyones = exchange(own)
        readings = {self._machines[rank]: everyones[rank] for rank in self._asking}
        return readings.get(self._own)


def _answer(rank: int, group: dist.ProcessGroup) -> None:
    for _ in range(_ROUNDS):
        dist.recv(_stamp(), rank, group)
        dist.send(_stamp(), rank, group)


def _ask(group: dist.ProcessGroup) -> list[Answer]:
    answers = []
    for _ in range(_ROUNDS):
        asked_s = time.perf_counter()
        dist.send(_stamp(), 0, group)
        answer = _stamp()
        dist.recv(answer, 0, group)
        answers.append(Answer(asked_s, float(answer), time.perf_counter()))
    return answers


def _stamp() -> torch.Tensor:
    return torch.tensor(time.perf_counter(), dtype=torch.float64)
