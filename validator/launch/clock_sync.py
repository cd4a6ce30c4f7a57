"""Synchronisation of clocks: converts times of ranks on different machines to rank 0's clock.

Processes of one machine share time.perf_counter's clock on Linux. Clocks of different machines have any offset and drift by
10 to 50 µs per second; messages there and back, before and after training, measure both. The offset does not affect step times.
"""

from __future__ import annotations

import time
from typing import Final

import torch
import torch.distributed as dist

from scaleproof.validator.launch.rank import exchange, here
from scaleproof.validator.record.clock_correction import ClockReading, Correction, RoundTrip, between, read

_ROUNDS: Final = 32


class Alignment:
    """This rank's clock relative to rank 0's. To be created, and its methods called, on all ranks together.

    own_machine: identifier of this machine, whose first rank exchanges messages with rank 0 for all of its ranks.
    """

    def __init__(self, own_machine: str) -> None:
        self._own = own_machine
        self._machines: Final[list[str]] = exchange(own_machine)
        elsewhere = dict.fromkeys(name for name in self._machines if name != self._machines[0])
        self._readers: Final = [self._machines.index(name) for name in elsewhere]
        # by gloo, as the host's clock is read
        self._group = dist.new_group(backend="gloo") if self._readers else None
        self._first: Final = self._read()

    def finish(self) -> Correction | None:
        """The correction of this rank's times to rank 0's clock; None on rank 0's machine."""
        last = self._read()
        if self._group is not None:
            dist.destroy_process_group(self._group)
        return None if self._first is None or last is None else between(self._first, last)

    def _read(self) -> ClockReading | None:
        """The current offset of this machine's clock from rank 0's; None on rank 0's machine."""
        if self._group is None:
            return None
        own = None
        for rank in self._readers:
            if here().rank == 0:
                _reply(rank, self._group)
            elif here().rank == rank:
                own = read(_round_trips(self._group))
        everyones = exchange(own)
        readings = {self._machines[rank]: everyones[rank] for rank in self._readers}
        return readings.get(self._own)


def _reply(rank: int, group: dist.ProcessGroup) -> None:
    for _ in range(_ROUNDS):
        dist.recv(_stamp(), rank, group)
        dist.send(_stamp(), rank, group)


def _round_trips(group: dist.ProcessGroup) -> list[RoundTrip]:
    round_trips = []
    for _ in range(_ROUNDS):
        sent_s = time.perf_counter()
        dist.send(_stamp(), 0, group)
        reply = _stamp()
        dist.recv(reply, 0, group)
        round_trips.append(RoundTrip(sent_s, float(reply), time.perf_counter()))
    return round_trips


def _stamp() -> torch.Tensor:
    return torch.tensor(time.perf_counter(), dtype=torch.float64)
