"""Servers: queues that serve requests in order of arrival, one after another, and answer them when their gate says so."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from scaleproof.simulator.program import Use
from scaleproof.simulator.program.consistency import DROPPED, Asp, Bsp, Gate, Ssp
from scaleproof.simulator.program.speed_profile import Pacing


class Request(NamedTuple):
    """`requests` alike requests of one step of a worker, each of `service_s`, for one of the server's buckets of parameters.

    instance: what the engine knows it by. update_s: of an update for which it is the last to come.
    """

    instance: int
    step: int
    worker: int
    bucket: int
    requests: int
    service_s: float
    update_s: float
    uses: Sequence[Use]


@dataclass(frozen=True)
class Busy:
    """The server worked from start to end, for a step."""

    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Applied:
    """What became of pushes whose gate does not wait for all; shape (steps, tasks).

    applied_s: when the parameters had it, not a number where they have not. behind: updates by others that the parameters had
    by then, beside those that the worker had read; DROPPED where it was.
    """

    applied_s: NDArray[np.float64]
    behind: NDArray[np.int64]


class ServerHost(ABC):
    """What a server works on, and who is told what becomes of requests, each by its instance."""

    @abstractmethod
    def work(self, seconds: float, uses: Sequence[Use], then: Callable[[], None]) -> None:
        """Calls `then` once so many seconds of work are done."""

    @abstractmethod
    def began(self, instance: int) -> None:
        """It is served from now on."""

    @abstractmethod
    def applied(self, instance: int, behind: int) -> None:
        """The parameters have it; behind: as `Applied` has it."""

    @abstractmethod
    def answered(self, instance: int) -> None:
        """The parameters are on their way."""


class Server:
    """Serves one request after another, in order of arrival."""

    def __init__(
        self, environment: simpy.Environment, host: ServerHost, gate: Gate, requests: Mapping[int, Mapping[int, int]],
        pacing: Pacing | None = None,
    ) -> None:  # fmt: skip
        """requests: how many a step brings, by bucket and worker. pacing: of its work; it is steady, if absent."""
        self.busy: list[Busy] = []
        self._environment = environment
        self._host = host
        self._pacing = pacing
        self._gates = {bucket: _gate(gate, of_workers) for bucket, of_workers in requests.items()}
        self._queue: deque[Request] = deque()
        self._is_busy = False

    def request(self, request: Request) -> None:
        """Queues a request."""
        self._queue.append(request)
        if not self._is_busy:
            self._next()

    def leave(self, worker: int) -> None:
        """The worker sends no more requests: nobody waits for it any longer."""
        for gate in self._gates.values():
            gate.leave(worker)
            self._answer(gate)

    def _next(self) -> None:
        """Begins to serve the next request that counts."""
        self._is_busy = False
        while self._queue and not self._is_busy:
            request = self._queue.popleft()
            self._host.began(request.instance)
            if self._gates[request.bucket].is_late(request):
                self._host.applied(request.instance, DROPPED)
                self._host.answered(request.instance)
            else:
                self._is_busy = True
                self._serve(request)

    def _serve(self, request: Request) -> None:
        self._spend(request, request.requests * request.service_s, lambda: self._served(request))

    def _served(self, request: Request) -> None:
        gate = self._gates[request.bucket]
        if gate.add(request):
            self._spend(request, request.update_s, lambda: self._updated(gate))
        else:
            self._updated(gate)

    def _updated(self, gate: _Gate) -> None:
        for request, behind in gate.applied():
            self._host.applied(request.instance, behind)
        self._answer(gate)
        self._next()

    def _answer(self, gate: _Gate) -> None:
        for request in gate.answered():
            self._host.answered(request.instance)

    def _spend(self, request: Request, seconds: float, then: Callable[[], None]) -> None:
        start_s = self._environment.now

        def done() -> None:
            self.busy.append(Busy(request.step, start_s, self._environment.now))
            then()

        if seconds > 0:
            if self._pacing is not None:
                seconds = self._pacing.lasts_s(start_s, seconds)
            self._host.work(seconds, request.uses, done)
        else:
            then()


class _Gate(ABC):
    """Decides over the requests of one bucket."""

    def is_late(self, request: Request) -> bool:
        """Whether it comes after the update that it was meant for."""
        return False

    @abstractmethod
    def leave(self, worker: int) -> None:
        """Expects nothing of the worker any longer."""

    @abstractmethod
    def add(self, request: Request) -> bool:
        """Takes what has been served; returns whether an update is due."""

    @abstractmethod
    def applied(self) -> Iterator[tuple[Request, int]]:
        """What the parameters have now that they had not before, and how far behind each was."""

    @abstractmethod
    def answered(self) -> Iterator[Request]:
        """What is answered now; each is given once."""


class _BarrierRound(_Gate):
    """Of a barrier: requests of one round wait for all that it needs.

    With backups a worker takes part in the round that follows its last answer, and is late once that has ended.
    """

    def __init__(self, requests: int, backups: int) -> None:
        """requests: of a step."""
        self._needed = requests - backups
        self._may_be_late = backups > 0
        self._round = 0
        self._of_worker: dict[int, int] = {}
        self._waiting: list[Request] = []
        self._count = 0

    def is_late(self, request: Request) -> bool:
        late = self._may_be_late and self._of_worker.get(request.worker, 0) < self._round
        if late:
            self._of_worker[request.worker] = self._round
        return late

    def leave(self, worker: int) -> None:
        """A round needs as many as before."""

    def add(self, request: Request) -> bool:
        self._waiting.append(request)
        self._count += request.requests
        return self._count >= self._needed

    def applied(self) -> Iterator[tuple[Request, int]]:
        return ((request, 0) for request in self._waiting if self._count >= self._needed)

    def answered(self) -> Iterator[Request]:
        if self._count < self._needed:
            return iter(())
        self._round += 1
        self._count, done, self._waiting = 0, self._waiting, []
        self._of_worker.update((request.worker, self._round) for request in done)
        return iter(done)


class _Clocks(_Gate):
    """Of a clock: applies what it gets, and counts for each worker what of it the parameters have."""

    def __init__(self, workers: Iterable[int], bound: float) -> None:
        self._bound = bound
        self._updates = 0
        self._clock = dict.fromkeys(workers, 0)
        # how many updates the parameters had that a worker read last
        self._read = dict(self._clock)
        self._slowest = 0
        self._at_slowest = len(self._clock)
        self._new: list[tuple[Request, int]] = []
        # by the clock of who asks
        self._waiting: dict[int, list[Request]] = {}

    def leave(self, worker: int) -> None:
        if self._clock.pop(worker, None) == self._slowest:
            self._one_went_on()

    def add(self, request: Request) -> bool:
        worker = request.worker
        self._new.append((request, self._updates - self._read[worker]))
        self._updates += 1
        # of a worker that has left there may still be something under way, which nothing waits for
        clock = self._clock[worker] + 1 if worker in self._clock else self._slowest
        self._waiting.setdefault(clock, []).append(request)
        if worker in self._clock:
            self._clock[worker] = clock
        if clock == self._slowest + 1:
            self._one_went_on()
        return False

    def _one_went_on(self) -> None:
        self._at_slowest -= 1
        if self._at_slowest == 0 and self._clock:
            self._slowest = min(self._clock.values())
            self._at_slowest = sum(clock == self._slowest for clock in self._clock.values())

    def applied(self) -> Iterator[tuple[Request, int]]:
        new, self._new = self._new, []
        return iter(new)

    def answered(self) -> Iterator[Request]:
        allowed = [clock for clock in self._waiting if clock <= self._slowest + self._bound]
        done = [request for clock in allowed for request in self._waiting.pop(clock)]
        self._read.update((request.worker, self._updates) for request in done)
        return iter(done)


def _gate(gate: Gate, requests: Mapping[int, int]) -> _Gate:
    """For a bucket; requests: of a step, by worker."""
    match gate:
        case Bsp():
            return _BarrierRound(sum(requests.values()), gate.backups)
        case Ssp():
            return _Clocks(requests, gate.bound)
        case Asp():
            return _Clocks(requests, math.inf)
