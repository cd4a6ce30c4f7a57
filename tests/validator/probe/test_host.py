"""Copies between host and device, and Adam's step on the host, are timed on one rank."""

from __future__ import annotations

from scaleproof.validator.probe import host
from tests.validator.probe.onranks import least_s, probed


def test_copies_are_timed_in_both_directions() -> None:
    points = probed(host.copies, 1, (2**14, 2**24), 0.5)
    for what in ("host to device", "device to host"):
        assert least_s(points, what, 2**24) > 20 * least_s(points, what, 2**14)


def test_adam_reads_and_writes_what_its_rate_is_of() -> None:
    """28 bytes per parameter at the rate of this machine's memory, neither more than any has nor less than a step in parts."""
    points = probed(host.adam, 1, (2**22,), 0.5)
    (point,) = points
    assert 2e7 < point.size / min(point.seconds) < 1e11
    assert point.numbers["cores"] >= 1
