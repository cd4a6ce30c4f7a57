"""Reports of the lab's self-test, on any machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.validator.netlab.self_test import LabReport, Transfer, _between_leaves, _rate_and_bucket, _ring
from scaleproof.validator.netlab.wiring import plan
from tests.validator.netlabs import lab_cluster

EXPECTED_BPS = 62.5e6
LAB = {"link rate": "500 Mbit/s", "bucket": "122 KiB", "latency": "the software's own: this kernel has no netem", "mtu": "9000"}


def _report(
    shares: list[float],
    together: float = 0.99,
    busy: float = 0.5,
    ends: Sequence[float] = (1.0,),
    hidden: tuple[str, ...] = (),
) -> LabReport:
    alone = tuple(
        Transfer(f"host {i} to host {i + 1}", EXPECTED_BPS, share * EXPECTED_BPS, 120 * 1024, 0.2)
        for i, share in enumerate(shares)
    )
    tried = tuple(
        Transfer(f"out of host {i}", EXPECTED_BPS, share * EXPECTED_BPS, 120 * 1024, 0.2) for i, share in enumerate(ends)
    )
    all_links = Transfer("all links", 4 * EXPECTED_BPS, together * 4 * EXPECTED_BPS, 0.0, busy)
    return LabReport(alone, tried, hidden, all_links, 2, 40e-6, LAB)


def test_links_near_their_rate_pass() -> None:
    assert _report([0.99, 0.95, 1.05]).warnings == ()


def test_a_link_slower_or_faster_than_requested_is_named() -> None:
    slow, fast = _report([0.5, 0.99, 1.5]).warnings
    assert slow == (
        "host 0 to host 1: 250 Mbit/s measured, 500 Mbit/s requested, and the cores are 20% busy; "
        "test again, and lower the rate if it stays so"
    )
    assert fast.startswith("host 2 to host 3: 750 Mbit/s measured, 500 Mbit/s requested")


def test_a_link_end_faster_than_requested_is_named() -> None:
    assert _report([1.0], ends=[1.0, 2.0]).warnings == (
        "out of host 1: 1.00 Gbit/s measured, 500 Mbit/s requested: its limit is missing or was changed; "
        "build the lab again, and do not change its links while it is up",
    )


def test_link_ends_that_cannot_be_tested_are_reported() -> None:
    """Two hosts by themselves fill no end that the other's does not fill too."""
    reported = _report([1.0], ends=[], hidden=("out of host 0", "into host 0")).provenance()["link ends"]
    assert reported == "2 tested only together with their other end, which is not faster (out of host 0, into host 0)"


def test_long_lists_of_wrong_links_are_shortened() -> None:
    warnings = _report([0.5] * 12).warnings
    assert len(warnings) == 5
    assert warnings[-1] == "8 more links are off by over 10%"


def test_busy_cores_are_distinguished_from_slow_links() -> None:
    (cores,) = _report([0.99], together=0.54, busy=0.97).warnings
    assert cores == (
        "all links at once carry 54% of the requested rate while the 2 cores are busy: they are the limit, not the links; "
        "lower the rate, or build fewer hosts"
    )
    (other,) = _report([0.99], together=0.54, busy=0.3).warnings
    assert other.startswith("all links at once carry 54% of the requested rate, and the cores are 30% busy; test again")


def test_the_provenance_has_requested_and_measured_rates() -> None:
    assert _report([0.98, 0.99, 0.991]).provenance() == {
        "link rate": "500 Mbit/s requested, 99.0% of it measured (from 98.0% to 99.1% of 3 links)",
        "link ends": "1 tested separately, 100.0% of the rate at most",
        "bucket": "122 KiB, 120 KiB apparent",
        "latency": "the software's own: this kernel has no netem",
        "mtu": "9000",
        "round trip": "40.0 us over TCP",
        "all links at once": "99.0% of the rate, 50% of 2 cores busy",
    }


@given(st.floats(1e5, 1e10), st.floats(0, 1e7), st.integers(4, 200))
def test_rate_and_bucket_are_recovered_from_arrivals(rate_Bps: float, bucket_bytes: float, arrivals: int) -> None:
    """What comes at once, then at the rate: found once half of the bytes are more than the bucket."""
    step_s = 4 * (bucket_bytes + 1000) / rate_Bps / arrivals
    came = [(i * step_s, round(bucket_bytes + rate_Bps * i * step_s)) for i in range(1, arrivals + 1)]
    rate, bucket = _rate_and_bucket([(0.0, 0), *came])
    assert rate == pytest.approx(rate_Bps, rel=0.01)
    assert bucket == pytest.approx(bucket_bytes, rel=0.05, abs=50)


def test_no_arrivals_give_a_rate_of_zero() -> None:
    assert _rate_and_bucket([(0.0, 0)]) == (0.0, 0.0)


def test_the_ring_tests_every_host_in_both_directions_and_equal_ones_concurrently() -> None:
    flows = list(_ring(plan(lab_cluster(4, "100 Mbit/s", exceptions=[{"at": [1], "bandwidth": "50 Mbit/s"}]))))
    assert [(flow.source, flow.target, flow.expected_Bps * 8) for flow in flows] == [
        (1, 0, 50e6),
        (0, 2, 100e6),
        (2, 3, 100e6),
        (3, 1, 50e6),
    ]


def test_hosts_of_a_leaf_send_to_the_next_leaf_to_saturate_its_uplink() -> None:
    lab = plan(lab_cluster(5, topology={"kind": "leaf_spine", "per_leaf": 2}))
    pairs = {leaf: [(flow.source, flow.target) for flow in flows] for leaf, flows in _between_leaves(lab)}
    assert pairs == {0: [(0, 2), (1, 3)], 1: [(2, 4)], 2: [(4, 0)]}
    assert list(_between_leaves(plan(lab_cluster(4)))) == []
