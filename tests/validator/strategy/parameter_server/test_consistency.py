"""Consistency models decide which pushes count and when servers reply; every push gets one reply in any order."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.parameter_server import Asp, Bsp, ConsistencyModel, Ssp
from scaleproof.validator.strategy.parameter_server.consistency import PushOrder, push_order

CONSISTENCIES = [Bsp(0), Bsp(1), Bsp(2), Ssp(0), Ssp(1), Ssp(3), Asp()]


def push(order: PushOrder, pusher: int) -> tuple[bool, list[int]]:
    """Whether it counts, and who is replied then; as a server does it."""
    if order.is_late(pusher):
        order.replied(pusher)
        replied = [pusher]
        counts = False
    else:
        order.add(pusher)
        replied, counts = [], True
    return counts, replied + (order.release() if order.is_due() else [])


@pytest.mark.parametrize("consistency", CONSISTENCIES)
@given(order=st.lists(st.integers(0, 3), max_size=60), pushes=st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_every_push_gets_one_reply(consistency: ConsistencyModel, order: list[int], pushes: list[int]) -> None:
    """order: which pusher is fastest at any time, of those that have been replied; the others follow in turn."""
    decided = push_order(consistency, dict(enumerate(pushes)))
    pushed, replied = [0] * 4, [0] * 4
    turn = iter(order)
    while free := [pusher for pusher in range(4) if pushed[pusher] == replied[pusher] < pushes[pusher]]:
        pusher = free[next(turn, 0) % len(free)]
        pushed[pusher] += 1
        _, released = push(decided, pusher)
        for one in released:
            replied[one] += 1
        if isinstance(consistency, Ssp):
            slowest = min((pushed[one] for one in range(4) if replied[one] < pushes[one]), default=math.inf)
            assert all(pushed[one] <= slowest + consistency.bound for one in released)

    assert replied == pushes, "nobody is left waiting"
    assert decided.left == {}


def test_workers_without_work_are_not_waited_for() -> None:
    order = push_order(Ssp(0), dict.fromkeys(range(3), math.inf))

    assert push(order, 0) == (True, [])
    assert push(order, 1) == (True, [])
    order.leave(2)

    assert sorted(order.release()) == [0, 1]


def test_a_round_accepts_the_first_and_drops_the_last_pushes() -> None:
    order = push_order(Bsp(1), dict.fromkeys(range(3), 10))

    assert push(order, 2) == (True, [])
    assert push(order, 0) == (True, [2, 0])
    assert push(order, 1) == (False, [1]), "it comes too late for the round, and goes on with the next"
    assert push(order, 1) == (True, [])
    assert push(order, 2) == (True, [1, 2])


def test_ssp_limits_how_far_a_worker_runs_ahead() -> None:
    order = push_order(Ssp(1), dict.fromkeys(range(2), 10))

    assert push(order, 0) == (True, [0]), "one step ahead"
    assert push(order, 0) == (True, []), "two"
    assert push(order, 1) == (True, [0, 1]), "in the order in which they came"


def test_rounds_do_not_wait_for_finished_workers() -> None:
    order = push_order(Bsp(1), {0: 1, 1: 2, 2: 2, 3: 2})

    assert push(order, 0) == (True, [])
    assert push(order, 1) == (True, [])
    assert push(order, 2) == (True, [0, 1, 2])
    assert push(order, 3) == (False, [3])
    assert push(order, 3) == (True, [3]), "nobody knows how many are still to come"


@given(st.randoms(use_true_random=False), st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
def test_servers_with_backups_never_wait_for_one_another(
    random: Random, workers: int, servers: int, parts: int, steps: int
) -> None:
    """Each server drops whom it likes; a worker goes on once all of them have replied all it pushed, in its order."""
    backups = random.randrange(workers)
    orders = {
        (server, part): push_order(Bsp(backups), dict.fromkeys(range(workers), steps)) for server, part in pairs(servers, parts)
    }
    pushed: dict[tuple[int, int], list[int]] = {pair: [*range(parts)] for pair in pairs(workers, servers)}
    taken, missing = [0] * workers, [servers * parts] * workers
    while coming := [pair for pair, left in pushed.items() if left]:
        pusher, server = random.choice(coming)
        part = pushed[pusher, server].pop(0)
        for one in push(orders[server, part], pusher)[1]:
            missing[one] -= 1
            if missing[one] == 0:
                taken[one] += 1
                missing[one] = servers * parts
                if taken[one] < steps:
                    pushed.update({(one, other): [*range(parts)] for other in range(servers)})

    assert taken == [steps] * workers


def pairs(first: int, second: int) -> list[tuple[int, int]]:
    return list(product(range(first), range(second)))
