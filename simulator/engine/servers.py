"""Servers: queues that serve requests in order of arrival and release them together after an update."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import simpy

from simulator.program import Use


@dataclass(frozen=True)
class Request:
    """`count` alike requests of one step, each of `service_s`; `released` is called once the step's update is done."""

    step: int
    count: int
    service_s: float
    update_s: float
    uses: Sequence[Use]
    began: Callable[[], None]
    released: Callable[[], None]


@dataclass(frozen=True)
class Busy:
    """The server worked from start to end, for a step."""

    step: int
    start_s: float
    end_s: float


class Server:
    """A synchronous server: it adds up what a step brings, in order of arrival, then updates once and releases all."""

    def __init__(
        self, environment: simpy.Environment, work: Callable[[float, Sequence[Use]], simpy.Event], requests_per_step: int
    ) -> None:
        self._environment = environment
        self._work = work
        self._requests_per_step = requests_per_step
        self._queue: simpy.Store = simpy.Store(environment)
        self.busy: list[Busy] = []
        environment.process(self._serve())

    def request(self, request: Request) -> None:
        """Queues a request."""
        self._queue.put(request)

    def _serve(self) -> Generator[simpy.Event, Request, None]:
        waiting: list[Request] = []
        while True:
            request = yield self._queue.get()
            request.began()
            yield from self._busy(request.step, request.count * request.service_s, request.uses)
            waiting.append(request)
            if len(waiting) == self._requests_per_step:
                yield from self._busy(request.step, request.update_s, request.uses)
                for served in waiting:
                    served.released()
                waiting.clear()

    def _busy(self, step: int, seconds: float, uses: Sequence[Use]) -> Generator[simpy.Event, Request, None]:
        start_s = self._environment.now
        if seconds > 0:
            yield self._work(seconds, uses)
        self.busy.append(Busy(step, start_s, self._environment.now))
