"""Fits of links recover the true numbers of simulated messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.units import parse_Bps, parse_time_s
from scaleproof.validator.calibration.cluster_file.section import Section
from scaleproof.validator.calibration.fit import links
from scaleproof.validator.probe.points import Point
from tests.validator.calibration.made import BANDWIDTH_BPS, BASE, LATENCY_S, SIZES, all_pairs, sends, times

CLUSTER = Cluster.model_validate(BASE)
TREE = Cluster.model_validate(
    BASE | {"network": BASE["network"] | {"topology": {"kind": "leaf_spine", "per_leaf": 2, "hop_latency": "1 us"}}}
)


def between(points: list[Point], cluster: Cluster = CLUSTER, nodes: range = range(4)) -> Section:
    return links.between(points, nodes, cluster)


def test_network_latency_and_bandwidth_follow_from_message_times() -> None:
    section = between(sends(all_pairs(4)))
    assert parse_Bps(section.fields["bandwidth"]) == pytest.approx(BANDWIDTH_BPS, rel=0.02)
    assert parse_time_s(section.fields["latency"]) == pytest.approx(LATENCY_S, rel=0.03)
    assert section.fields["cores_busy"] == 0.8
    assert not section.notes
    for name, value in (("network.bandwidth", BANDWIDTH_BPS), ("network.latency", LATENCY_S)):
        found = section.intervals[name]
        parse = parse_Bps if name.endswith("width") else parse_time_s
        assert parse(found["low"]) <= value * 1.02
        assert parse(found["high"]) >= value * 0.98
        assert found["measurements"] == 6 * len(SIZES) * 9


@settings(max_examples=10, deadline=None)
@given(st.floats(1e6, 1e10), st.floats(1e-6, 1e-2))
def test_any_latency_and_bandwidth_are_recovered(bandwidth_Bps: float, latency_s: float) -> None:
    section = between(sends(all_pairs(3), rate=lambda one, other: bandwidth_Bps, latency_s=latency_s))
    assert parse_time_s(section.fields["latency"]) == pytest.approx(latency_s, rel=0.05)
    # where latency hides the rate of the largest messages, it cannot be determined
    if SIZES[-1] / bandwidth_Bps > latency_s:
        assert parse_Bps(section.fields["bandwidth"]) == pytest.approx(bandwidth_Bps, rel=0.1)


def test_a_slow_host_is_named_and_excluded_from_the_usual_rate() -> None:
    section = between(sends(all_pairs(4), rate=lambda one, other: BANDWIDTH_BPS / (2 if 3 in (one, other) else 1)))
    assert parse_Bps(section.fields["bandwidth"]) == pytest.approx(BANDWIDTH_BPS, rel=0.02)
    (exceptions,) = section.fields["exceptions"]
    assert exceptions["at"] == [3]
    assert parse_Bps(exceptions["bandwidth"]) == pytest.approx(BANDWIDTH_BPS / 2, rel=0.03)
    assert any("host 3" in line for line in section.notes)


def test_a_slow_link_is_named_by_its_hosts() -> None:
    section = between(sends(all_pairs(4), rate=lambda *pair: BANDWIDTH_BPS * (0.6 if pair == (0, 2) else 1)))
    assert any("host 0 ↔ host 2 runs at 60 % of the others" in line for line in section.notes)
    assert section.fields["exceptions"] == []


def test_latency_of_further_hops_is_separate() -> None:
    near = sends([(0, 1), (2, 3)])
    far = sends([(0, 2), (1, 3)], "across", latency_s=LATENCY_S + 40e-6)
    section = between([*near, *far], TREE)
    hops = TREE.network.wiring(4).route(0, 2).extra_hops if TREE.network else 0
    assert parse_time_s(section.fields["latency"]) == pytest.approx(LATENCY_S, rel=0.03)
    assert parse_time_s(section.fields["topology"]["hop_latency"]) * hops == pytest.approx(40e-6, rel=0.1)


def test_streams_give_the_rate_of_links_with_an_initial_burst() -> None:
    bucket_bytes = 100_000

    def median_s(size: int) -> float:
        return LATENCY_S + max(0, size - bucket_bytes) / BANDWIDTH_BPS

    points = [replace(point, seconds=times(median_s(round(point.size)))) for point in sends(all_pairs(4))]
    gaps = sends([(0, 1)], latency_s=0.0, what="stream", sizes=(4, 4096, 2**16, 2**18))
    gaps = [replace(point, seconds=tuple(max(one, 15e-6) for one in point.seconds)) for point in gaps]
    assert parse_Bps(between([*points, *gaps]).fields["bandwidth"]) == pytest.approx(BANDWIDTH_BPS, rel=0.03)


def exchanges(factor: float, size: int = 2**20) -> list[Point]:
    seconds = times(factor * (LATENCY_S + size / BANDWIDTH_BPS))
    return [Point("message", "exchange", "rank 0 to rank 1", (0, 1), "same leaf", size, "bytes", seconds, "narrow", 0.8)]


@pytest.mark.parametrize(("factor", "duplex"), [(1.05, None), (2.0, "half")])
def test_concurrent_exchanges_identify_half_duplex(factor: float, duplex: str | None) -> None:
    assert between([*sends(all_pairs(4)), *exchanges(factor)]).fields.get("duplex") == duplex


def test_slow_exchanges_of_small_messages_do_not_make_a_link_half_duplex() -> None:
    small = [point for size in (4, 64, 1024) for point in exchanges(3.0, size)]
    assert "duplex" not in between([*sends(all_pairs(4)), *small, *exchanges(1.05)]).fields


def three_senders(rate_Bps: float) -> Point:
    """Three messages of 1 MiB that arrive at a rank at a rate in total."""
    seconds = times(2 * LATENCY_S + 3 * 2**20 / rate_Bps, noise=0.001)
    numbers = {"senders": 3.0}
    where = "ranks 1-3 to rank 0"
    return Point("message", "incast", where, (0, 1, 2, 3), "", 2**20, "bytes", seconds, "narrow", 0.8, numbers)


@pytest.mark.parametrize(("planted", "found"), [(0.0, None), (0.1, 0.1)])
def test_incast_loss_is_fitted(planted: float, found: float | None) -> None:
    incast: Any = between([*sends(all_pairs(4)), three_senders(BANDWIDTH_BPS / (1 + planted * 2))]).fields.get("incast")
    assert incast == (None if found is None else pytest.approx(found, abs=0.03))


def test_the_rate_of_a_link_that_one_sender_does_not_fill_is_that_of_several() -> None:
    section = between([*sends(all_pairs(4)), three_senders(1.2 * BANDWIDTH_BPS)])
    assert parse_Bps(section.fields["bandwidth"]) == pytest.approx(1.2 * BANDWIDTH_BPS, rel=0.02)
    found = section.intervals["network.bandwidth"]
    assert parse_Bps(found["low"]) <= BANDWIDTH_BPS
    assert parse_Bps(found["high"]) >= 1.2 * BANDWIDTH_BPS
    assert "incast" not in section.fields


def test_intra_node_messages_only_determine_the_node_link() -> None:
    points = sends(all_pairs(4), "same socket", rate=lambda one, other: 5e9)
    assert between(points) == Section()
    section = links.inside(points)
    assert section.fields["bandwidth"].endswith("GB/s")
    assert parse_Bps(section.fields["bandwidth"]) == pytest.approx(5e9, rel=0.1)
    assert links.inside(sends(all_pairs(4))) == Section()
