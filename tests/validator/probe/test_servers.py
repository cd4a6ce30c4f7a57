"""Updates and pushes are timed by parameters, optimizer and number of workers."""

from __future__ import annotations

import pytest

from tests.validator.probe.onranks import least_s, probed
from validator.probe import servers


def test_updates_are_timed_on_one_rank() -> None:
    points = probed(servers.updates, 2, (1, 4), ("sgd", "adam"), (2**8, 2**20), 3.0)
    assert [(p.what, p.size) for p in points] == [
        (f"{name} of {gradients}", size)
        for name in ("sgd", "adam")
        for gradients in ("1 gradient", "4 gradients")
        for size in (2**8, 2**20)
    ]
    assert {(p.where, p.ranks) for p in points} == {("rank 0", (0,))}
    for what in {p.what for p in points}:
        assert least_s(points, what, 2**20) > least_s(points, what, 2**8)


@pytest.mark.parametrize("server", [0, 2])
def test_workers_push_to_the_server_and_pull(server: int) -> None:
    workers = [rank for rank in range(3) if rank != server]
    points = probed(servers.pushes, 3, server, workers, "sgd", (2**8, 2**20), 2.0)
    assert {p.where for p in points} == {"ranks 1-2 to rank 0" if server == 0 else "ranks 0-1 to rank 2"}
    assert {(p.unit, p.numbers["workers"]) for p in points} == {("parameters", 2)}
    assert least_s(points, "push and pull", 2**20) > least_s(points, "push and pull", 2**8)
