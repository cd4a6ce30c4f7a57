"""Servers alone: order of service, updates, and replies of each consistency model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.parameter_server import DROPPED, Asp, Bsp, ConsistencyModel, Ssp
from scaleproof.simulator.engine.servers import Request, Server, ServerHost
from scaleproof.simulator.program import Use

SERVICE_S, UPDATE_S = 1.0, 0.5


class Log(ServerHost):
    """A server of N workers with one request per step each, and all its replies."""

    def __init__(self, consistency: ConsistencyModel, workers: int) -> None:
        self.environment = simpy.Environment()
        self.server = Server(self.environment, self, consistency, {0: dict.fromkeys(range(workers), 1)})
        self.began_s: dict[int, float] = {}
        self.applied_s: dict[int, float] = {}
        self.behind: dict[int, int] = {}
        self.replied_s: dict[int, float] = {}

    def work(self, seconds: float, uses: Sequence[Use], then: Callable[[], None]) -> None:
        self.environment.timeout(seconds).callbacks.append(lambda _: then())

    def began(self, instance: int) -> None:
        self.began_s[instance] = self.environment.now

    def applied(self, instance: int, behind: int) -> None:
        self.applied_s[instance] = self.environment.now
        self.behind[instance] = behind

    def replied(self, instance: int) -> None:
        assert instance in self.applied_s
        self.replied_s[instance] = self.environment.now

    def send(self, requests: Sequence[tuple[float, int]]) -> None:
        """Requests by arrival and worker, numbered from zero."""
        for instance, (time_s, worker) in enumerate(requests):
            request = Request(instance, 0, worker, 0, 1, SERVICE_S, UPDATE_S, ())
            self.environment.timeout(time_s, request).callbacks.append(lambda timer: self.server.request(timer.value))
        self.environment.run()


def test_requests_are_served_in_order_of_arrival() -> None:
    log = Log(Asp(), 3)
    log.send([(0.2, 0), (0.1, 1), (5.0, 2)])
    assert log.began_s == pytest.approx({1: 0.1, 0: 1.1, 2: 5.0})
    assert log.replied_s == log.applied_s == pytest.approx({1: 1.1, 0: 2.1, 2: 6.0})


def test_a_barrier_updates_once_after_all_pushes_and_then_replies_to_all() -> None:
    log = Log(Bsp(), 3)
    log.send([(0.0, 0), (4.0, 1), (1.0, 2)])
    assert log.began_s == {0: 0.0, 2: 1.0, 1: 4.0}
    assert log.replied_s == log.applied_s == dict.fromkeys(range(3), 4 + SERVICE_S + UPDATE_S)
    assert set(log.behind.values()) == {0}


def test_late_backup_pushes_are_dropped() -> None:
    """Worker 2 is a backup of the first round: it gets a reply as soon as it comes, and counts again in the round after."""
    log = Log(Bsp(backups=1), 3)
    log.send([(0.0, 0), (1.0, 1), (10.0, 2), (11.0, 2), (12.0, 0), (20.0, 1)])
    assert log.replied_s[0] == log.replied_s[1] == 2 + UPDATE_S
    assert (log.replied_s[2], log.behind[2]) == (10.0, DROPPED)
    assert log.replied_s[3] == log.replied_s[4] == 13 + UPDATE_S
    assert (log.replied_s[5], log.behind[5]) == (20.0, DROPPED)


def test_requests_queued_at_the_end_of_a_round_are_dropped() -> None:
    log = Log(Bsp(backups=1), 2)
    log.send([(0.0, 0), (0.1, 1)])
    assert log.replied_s == {0: SERVICE_S + UPDATE_S, 1: SERVICE_S + UPDATE_S}
    assert log.behind == {0: 0, 1: DROPPED}
    assert [(busy.start_s, busy.end_s) for busy in log.server.busy] == [(0, 1), (1, 1.5)]


def test_staleness_counts_other_updates_between_a_pull_and_a_push() -> None:
    log = Log(Asp(), 3)
    log.send([(0.0, 0), (10.0, 1), (20.0, 0), (30.0, 1), (40.0, 1), (50.0, 2)])
    # 1: the one by 0. 2: by 1. 3: by 0. 4: none between its own two. 5: all five
    assert [log.behind[instance] for instance in range(6)] == [0, 1, 1, 1, 0, 5]


def test_ssp_replies_once_the_slowest_is_within_the_bound() -> None:
    log = Log(Ssp(bound=1), 2)
    log.send([(0.0, 0), (10.0, 0), (20.0, 1), (30.0, 0)])
    assert log.applied_s == {0: 1, 1: 11, 2: 21, 3: 31}
    # the second push of 0 is two ahead of 1, until that has one applied; the third is again
    assert log.replied_s == {0: 1, 1: 21, 2: 21}


def test_workers_that_left_are_not_waited_for() -> None:
    log = Log(Ssp(bound=0), 3)
    log.send([(0.0, 0), (5.0, 1)])
    assert not log.replied_s
    log.server.leave(2)
    assert set(log.replied_s) == {0, 1}


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), min_size=1, max_size=40), st.integers(0, 3))
def test_ssp_never_replies_to_a_worker_beyond_the_bound(pushes: list[tuple[int, float]], bound: int) -> None:
    log = Log(Ssp(bound), 4)
    now_s, requests = 0.0, []
    for worker, after_s in pushes:
        now_s += after_s
        requests.append((now_s, worker))
    log.send(requests)
    assert len(log.applied_s) == len(pushes), "all are applied, whoever waits"
    of_worker = {worker: [i for i, (_, one) in enumerate(requests) if one == worker] for worker in range(4)}
    for instance, replied_s in log.replied_s.items():
        own = of_worker[requests[instance][1]].index(instance) + 1
        applied = [sum(log.applied_s[i] <= replied_s for i in of_worker[worker]) for worker in range(4)]
        assert own - min(applied) <= bound


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 3)), min_size=1, max_size=40))
def test_without_a_bound_a_server_is_a_queue(requests: list[tuple[float, int]]) -> None:
    """Lindley's recursion: each begins when it has come and the one before it is served."""
    log = Log(Asp(), 4)
    log.send(requests)
    free_s = 0.0
    for instance in sorted(range(len(requests)), key=lambda i: requests[i][0]):
        assert log.began_s[instance] == pytest.approx(max(requests[instance][0], free_s))
        free_s = log.replied_s[instance]
        assert free_s == pytest.approx(log.began_s[instance] + SERVICE_S)
