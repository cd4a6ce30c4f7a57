"""Server queues in replay: servers whose requests of a step all arrive before those of the next, timed for all samples at
once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.engine.durations import Times, rates, speed_profile_of
from scaleproof.simulator.program import Kind, Program


class QueuedServer(NamedTuple):
    """A server class and its tasks.

    bucket: of each task. update_s: duration of the update after a task if it is the last of its bucket. Shape (tasks of the
    server,), or as of `durations_s`.
    """

    rank: int
    tasks: NDArray[np.int64]
    bucket: NDArray[np.int32]
    update_s: Times
    profile: SpeedProfiles | None

    def served_s(self, begin_s: Times, work_s: Times) -> Times:
        """End of work that begins at `begin_s` and takes `work_s` at normal speed, all of shape (requests, samples)."""
        return begin_s + work_s if self.profile is None else self.profile.end_s(begin_s, work_s)


def servers_of(program: Program) -> list[QueuedServer]:
    """A program's servers, each with the rows of its requests and the seconds of its updates."""
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    update_s = (program.update_s.T / rates(program).T).T
    by_rank = ((rank, serves[program.rank[serves] == rank]) for rank in np.unique(program.rank[serves]).tolist())
    return [
        QueuedServer(rank, tasks, program.bucket[tasks], update_s[tasks], speed_profile_of(program, rank))
        for rank, tasks in by_rank
    ]


class ReplayQueue:
    """A synchronous server's queue: first come, first served; a bucket is released after its last request and an update."""

    def __init__(self, server: QueuedServer, places: NDArray[np.int64], release: int) -> None:
        """release: its row."""
        self.server = server
        self.places = places[server.tasks]
        self.release = places[release]
        self.arrived_s: Times | float = 0.0
        self.free_s: Times | float = 0.0

    def serve(self, start: Times, end: Times, seconds: Times) -> None:
        """Sets start and end of the server's tasks, whose arrivals are in `end`; all of shape (places, samples)."""
        arrival_s = end[self.places]
        if (arrival_s < self.arrived_s).any():
            raise ValueError("a server's request overtakes one of the step before; use the events engine")
        self.arrived_s = arrival_s.max(axis=0)
        order = np.argsort(arrival_s, axis=0, kind="stable")
        ready_s = np.maximum(np.take_along_axis(arrival_s, order, axis=0), self.free_s)
        bucket, sample = self.server.bucket[order], np.arange(order.shape[1])
        is_last = last_of_buckets(bucket)
        service_s = np.take_along_axis(seconds[self.server.tasks], order, axis=0)
        update_s = np.broadcast_to(self.server.update_s.reshape(len(order), -1), order.shape)
        service_s = service_s + np.where(is_last, np.take_along_axis(update_s, order, axis=0), 0.0)
        served_s = self._served_s(ready_s, service_s)
        start[self.places[order], sample] = np.maximum(ready_s, np.concatenate([ready_s[:1], served_s[:-1]]))
        for number in np.unique(self.server.bucket):
            is_served = is_last & (bucket == number)
            end[self.places[self.server.bucket == number]] = served_s.max(axis=0, where=is_served, initial=0.0)
        # the release only orders tasks, and must not delay any
        end[self.release] = 0.0
        self.free_s = served_s[-1]

    def _served_s(self, ready_s: Times, service_s: Times) -> Times:
        """End of each request in serving order. ready_s: earliest begin; all of shape (requests, samples)."""
        if self.server.profile is None:
            # maximum over a request and those before it of the arrival plus all services from there on
            total_s = np.cumsum(service_s, axis=0)
            return total_s + np.maximum.accumulate(ready_s - total_s + service_s, axis=0)
        served_s, free_s = np.empty_like(ready_s), ready_s[:1]
        for place in range(len(ready_s)):
            at = slice(place, place + 1)
            free_s = self.server.served_s(np.maximum(ready_s[at], free_s), service_s[at])
            served_s[place] = free_s[0]
        return served_s


def last_of_buckets(bucket: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each request is the last of its bucket. bucket: of requests in serving order; shape (requests, samples)."""
    last = np.zeros(bucket.shape, dtype=np.bool_)
    backward = bucket[::-1]
    for number in np.unique(bucket):
        place = len(bucket) - 1 - np.argmax(backward == number, axis=0)
        last[place, np.arange(bucket.shape[1])] = True
    return last
