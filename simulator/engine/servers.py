"""Servers in the events engine: queues that serve requests in order of arrival, and reply by their consistency model."""

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

from scaleproof.simulator.common.parameter_server import DROPPED, Asp, Bsp, Clocks, ConsistencyModel, Rounds, Ssp
from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.program import Use


class Request(NamedTuple):
    """`requests` equivalent requests of one step of a worker, each of `service_s`, for one of the server's parameter buckets.

    instance: the engine's task instance. update_s: duration of an update that the request completes.
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
    """An interval in which a server works for a step."""

    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Applied:
    """Results of pushes of a program that is not static; shape (steps, tasks).

    applied_s: time at which a push was applied, NaN if it was not. behind: version staleness, the number of updates by others
    that the parameters include in addition to those that the worker had read; DROPPED for dropped pushes.
    """

    applied_s: NDArray[np.float64]
    behind: NDArray[np.int64]


class ServerHost(ABC):
    """The simulation in which a server works, which is notified of its requests by their instances."""

    @abstractmethod
    def work(self, seconds: float, uses: Sequence[Use], then: Callable[[], None]) -> None:
        """Does `seconds` of work, then calls `then`."""

    @abstractmethod
    def began(self, instance: int) -> None:
        """A request begins to be served."""

    @abstractmethod
    def applied(self, instance: int, behind: int) -> None:
        """A push has been applied to the parameters; behind: see `Applied`."""

    @abstractmethod
    def replied(self, instance: int) -> None:
        """The server has replied to a request."""


class Server:
    """Serves one request after another, in order of arrival."""

    def __init__(
        self,
        environment: simpy.Environment,
        host: ServerHost,
        consistency: ConsistencyModel,
        requests: Mapping[int, Mapping[int, int]],
        profile: SpeedProfiles | None = None,
    ) -> None:
        """requests: number per step, by bucket and worker. profile: of the server's speed; constant if None."""
        self.busy: list[Busy] = []
        self._environment = environment
        self._host = host
        self._profile = profile
        self._policies = {bucket: _reply_policy(consistency, by_worker) for bucket, by_worker in requests.items()}
        self._queue: deque[Request] = deque()
        self._is_busy = False

    def request(self, request: Request) -> None:
        """Queues a request."""
        self._queue.append(request)
        if not self._is_busy:
            self._next()

    def leave(self, worker: int) -> None:
        """Removes a worker that sends no more requests, so that others no longer wait for it."""
        for policy in self._policies.values():
            policy.leave(worker)
            self._reply(policy)

    def _next(self) -> None:
        """Begins to serve the next request that is not late; late ones are dropped."""
        self._is_busy = False
        while self._queue and not self._is_busy:
            request = self._queue.popleft()
            self._host.began(request.instance)
            if self._policies[request.bucket].is_late(request):
                self._host.applied(request.instance, DROPPED)
                self._host.replied(request.instance)
            else:
                self._is_busy = True
                self._serve(request)

    def _serve(self, request: Request) -> None:
        self._spend(request, request.requests * request.service_s, lambda: self._served(request))

    def _served(self, request: Request) -> None:
        policy = self._policies[request.bucket]
        if policy.add(request):
            self._spend(request, request.update_s, lambda: self._updated(policy))
        else:
            self._updated(policy)

    def _updated(self, policy: _ReplyPolicy) -> None:
        for request, behind in policy.applied():
            self._host.applied(request.instance, behind)
        self._reply(policy)
        self._next()

    def _reply(self, policy: _ReplyPolicy) -> None:
        for request in policy.replies():
            self._host.replied(request.instance)

    def _spend(self, request: Request, seconds: float, then: Callable[[], None]) -> None:
        start_s = self._environment.now

        def done() -> None:
            self.busy.append(Busy(request.step, start_s, self._environment.now))
            then()

        if seconds > 0:
            if self._profile is not None:
                seconds = self._profile.lasts_s(start_s, seconds)
            self._host.work(seconds, request.uses, done)
        else:
            then()


class _ReplyPolicy(ABC):
    """Decides when the requests of one bucket are applied and replied to."""

    def is_late(self, request: Request) -> bool:
        """Whether a request arrives after the update that it belongs to."""
        return False

    @abstractmethod
    def leave(self, worker: int) -> None:
        """Removes a worker that sends no more requests."""

    @abstractmethod
    def add(self, request: Request) -> bool:
        """Adds a request that has been served; returns whether an update is due."""

    @abstractmethod
    def applied(self) -> Iterator[tuple[Request, int]]:
        """The requests that are newly applied to the parameters, with the version staleness of each."""

    @abstractmethod
    def replies(self) -> Iterator[Request]:
        """The requests that are replied to now; each is given once."""


class _BarrierRound(_ReplyPolicy):
    """BSP: the requests of a round wait until all that the round needs have been served."""

    def __init__(self, requests: int, backups: int) -> None:
        """requests: number per step."""
        self._needed = requests - backups
        self._rounds = Rounds()
        self._waiting: list[Request] = []

    def is_late(self, request: Request) -> bool:
        late = self._rounds.is_late(request.worker)
        if late:
            self._rounds.join(request.worker)
        return late

    def leave(self, worker: int) -> None:
        """Does nothing: a round needs as many requests as before."""

    def add(self, request: Request) -> bool:
        self._waiting.append(request)
        self._rounds.add(request.worker, request.requests)
        return self._rounds.has(self._needed)

    def applied(self) -> Iterator[tuple[Request, int]]:
        return ((request, 0) for request in self._waiting if self._rounds.has(self._needed))

    def replies(self) -> Iterator[Request]:
        if not self._rounds.has(self._needed):
            return iter(())
        self._rounds.end()
        done, self._waiting = self._waiting, []
        return iter(done)


class _ClockReplies(_ReplyPolicy):
    """SSP and ASP: applies each request at once, and delays the reply until the workers' clocks allow it."""

    def __init__(self, workers: Iterable[int], bound: float) -> None:
        self._clocks = Clocks(workers, bound)
        self._updates = 0
        # number of updates in the parameters that each worker has read last
        self._read = dict.fromkeys(workers, 0)
        self._new: list[tuple[Request, int]] = []
        # by the clock of the worker
        self._waiting: dict[float, list[Request]] = {}

    def leave(self, worker: int) -> None:
        self._clocks.leave(worker)

    def add(self, request: Request) -> bool:
        self._new.append((request, self._updates - self._read[request.worker]))
        self._updates += 1
        self._waiting.setdefault(self._clocks.advance(request.worker), []).append(request)
        return False

    def applied(self) -> Iterator[tuple[Request, int]]:
        new, self._new = self._new, []
        return iter(new)

    def replies(self) -> Iterator[Request]:
        allowed = [clock for clock in self._waiting if self._clocks.allows_reply(clock)]
        done = [request for clock in allowed for request in self._waiting.pop(clock)]
        self._read.update((request.worker, self._updates) for request in done)
        return iter(done)


def _reply_policy(consistency: ConsistencyModel, requests: Mapping[int, int]) -> _ReplyPolicy:
    """The policy of a consistency model for one bucket. requests: number per step, by worker."""
    match consistency:
        case Bsp():
            return _BarrierRound(sum(requests.values()), consistency.backups)
        case Ssp():
            return _ClockReplies(requests, consistency.bound)
        case Asp():
            return _ClockReplies(requests, math.inf)
