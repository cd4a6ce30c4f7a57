"""Times of concurrent computation and communication are recorded with the times of each alone."""

from __future__ import annotations

from statistics import median

from scaleproof.validator.probe import overlap
from tests.validator.probe.onranks import probed


def test_compute_and_communication_are_timed_concurrently_and_alone() -> None:
    compute, communication = probed(overlap.overlap, 2, [[0, 1]], 2**20, 64, 0.8)
    assert (compute.what, compute.unit) == ("compute", "flops")
    assert compute.size % (2 * 64**3) == 0
    assert (communication.what, communication.unit, communication.size) == ("communication", "bytes", 2**20)
    for point in (compute, communication):
        assert point.numbers["together_s"] == median(point.seconds)
        assert point.numbers["alone_s"] > 0
