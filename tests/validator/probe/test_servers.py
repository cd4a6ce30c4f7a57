"""Updates are timed by parameters, optimizer and number of workers."""

from __future__ import annotations

from scaleproof.validator.probe import servers
from tests.validator.probe.onranks import least_s, probed


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
