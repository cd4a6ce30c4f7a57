"""Units of work: steps of single workers that a run divides into fixed parts, or that workers take when they are free.

For shared units a worker sends a request to the first server before each step, and passes the reply on to the other servers.
These messages of one byte have a process group of their own, so that parameters do not delay them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import steps_of_worker, warmup_steps
from scaleproof.validator.strategy.layout import messages


class UnitRequests:
    """A worker's requests for shared units."""

    def __init__(self, group: dist.ProcessGroup, servers: Sequence[int]) -> None:
        self._group, self._servers = group, servers
        self._sent: list[dist.Work] = []

    def take(self) -> bool:
        """Requests a unit; returns whether the worker got one. After the first refusal, of which all servers then know, it must
        not request again."""
        first, *others = self._servers
        reply = _flag(False)
        messages.send(_flag(True), first, self._group).wait()
        messages.receive(reply, first, self._group).wait()
        messages.wait_all(self._sent)
        self._sent = [messages.send(reply, server, self._group) for server in others]
        if not reply:
            # gloo drops a message whose sender forgets it before the receiver is ready
            messages.wait_all(self._sent)
        return bool(reply)


class UnitGrants:
    """A server's replies to requests for shared units; the first server decides, by threads of several workers."""

    def __init__(self, group: dist.ProcessGroup, units: int, is_first: bool) -> None:
        self._group, self._left, self._is_first = group, units, is_first
        self._lock = Lock()

    def grants(self, worker: int) -> bool:
        """Waits for the worker's next request; returns whether it takes another step."""
        request = _flag(False)
        messages.receive(request, worker, self._group).wait()
        if not self._is_first:
            return bool(request)
        with self._lock:
            granted = self._left > 0
            self._left -= granted
        messages.send(_flag(granted), worker, self._group).wait()
        return granted


def rounds(scenario: Scenario, worker: int, grants: UnitGrants | None) -> Iterator[int]:
    """The numbers of a worker's pushes of each bucket, the warm-up's first. With grants, waits for the worker's requests."""
    if grants is None:
        yield from range(steps_of_worker(scenario, worker))
        return
    number = warmup_steps(scenario)
    yield from range(number)
    while grants.grants(worker):
        yield number
        number += 1


def _flag(value: bool) -> Tensor:
    return torch.full((1,), value, dtype=torch.uint8)
