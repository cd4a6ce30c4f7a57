"""Times of concurrent computation and communication are recorded with the times of each alone."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import pytest
import torch

from scaleproof.validator.probe import overlap
from scaleproof.validator.probe.peers import ALONE
from tests.validator.probe.onranks import probed


def test_compute_and_communication_are_timed_concurrently_and_alone() -> None:
    compute, communication = probed(overlap.overlap, 2, [[0, 1]], 2**20, 64, "fp32", 0.8)
    assert (compute.what, compute.unit) == ("compute", "flops")
    assert compute.size % (2 * 64**3) == 0
    assert (communication.what, communication.unit, communication.size) == ("communication", "bytes", 2**20)
    for point in (compute, communication):
        assert point.numbers["together_s"] == median(point.seconds)
        assert point.numbers["alone_s"] > 0


class Clock:
    """A clock that writes its calls into a list."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def wait(self) -> None:
        self.calls.append("wait")

    def mark(self) -> float:
        self.calls.append("mark")
        return 0.0

    def seconds(self, first: float, second: float) -> float:
        return 1e-3


def test_a_device_is_not_waited_for_between_the_sums_and_the_products(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of a GPU would end before its products begin."""
    calls: list[str] = []
    ended = SimpleNamespace(wait=lambda: calls.append("sum ended"))
    probe = overlap._Probe(ALONE, 2**10, 8, "bf16", 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr(probe, "clock", Clock(calls))
    monkeypatch.setattr(probe, "begin_sum", lambda: calls.append("sum") or ended)
    monkeypatch.setattr(probe, "multiply", lambda times: calls.append(f"{times} products"))
    probe.compute_overlapped(5, 2)
    assert calls == ["wait", "sum", "sum", "mark", "5 products", "mark", "sum ended", "sum ended", "wait"]
    assert probe.left.dtype == torch.bfloat16
