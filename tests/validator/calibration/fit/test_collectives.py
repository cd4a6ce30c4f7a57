"""Fits of collectives: lines for each operation and group, which predictions use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.cluster.quantities import parse_share
from scaleproof.simulator.common.units import parse_Bps, parse_bytes, parse_time_s
from scaleproof.validator.calibration.cluster_file.section import Section
from scaleproof.validator.calibration.fit.collectives import measured
from tests.validator.calibration.made import BASE, SIZES, sums


def test_each_operation_and_group_has_its_own_line() -> None:
    section = measured([*sums(4, 4, 1e-3, 30e6), *sums(2, 2, 5e-4, 50e6), *sums(4, 4, 2e-3, 10e6, "alltoall")])
    found = {(one["op"], one["ranks"], one.get("nodes", 1)): one for one in section.fields["measured"]}
    assert set(found) == {("all_reduce", 4, 4), ("all_reduce", 2, 2), ("alltoall", 4, 4)}
    assert parse_Bps(found["all_reduce", 4, 4]["bandwidth"]) == pytest.approx(30e6, rel=0.02)
    assert parse_time_s(found["alltoall", 4, 4]["latency"]) == pytest.approx(2e-3, rel=0.05)
    assert section.intervals["collectives"]["measurements"] == 3 * len(SIZES[3:]) * 9


def test_groups_with_too_few_sizes_are_skipped_and_reported() -> None:
    section = measured([*sums(4, 4, 1e-3, 30e6), *sums(2, 2, 1e-3, 30e6)[:2]])
    assert [one["ranks"] for one in section.fields["measured"]] == [4]
    (line,) = section.notes
    assert "all_reduce over 2 ranks on 2 nodes: 2 sizes are too few to fit; give 3" in line


def test_unmeasured_operations_are_absent() -> None:
    failed = [replace(point, seconds=(), stopped="failed: timed out") for point in sums(4, 4, 1e-3, 30e6)]
    assert measured([]) == measured(failed) == Section()


def test_noise_of_small_sizes_does_not_widen_intervals_of_large_ones() -> None:
    even = sums(4, 4, 1e-3, 30e6)
    odd = [replace(p, seconds=tuple(1.5 * one for one in p.seconds)) if p.size in (2**8, 2**12) else p for p in even]
    highs = [parse_share(measured(points).intervals["collectives"]["high"]) for points in (even, odd)]
    assert highs[1] == pytest.approx(highs[0], abs=0.01)


def test_longer_times_weigh_more_and_intervals_include_the_misfit() -> None:
    even = sums(4, 4, 1e-3, 30e6)
    large = max(point.size for point in even)

    def off(size: float) -> Section:
        return measured([replace(p, seconds=tuple(1.2 * one for one in p.seconds)) if p.size == size else p for p in even])

    def width(section: Section) -> float:
        return parse_share(section.intervals["collectives"]["high"])

    assert width(off(2**16)) < width(off(large / 16))
    assert 1.01 < width(measured(even)) < 1.03


def test_a_change_of_protocol_gives_another_entry() -> None:
    small, large = sums(4, 4, 1e-4, 10e6), sums(4, 4, 1e-2, 30e6)
    points = [one if one.size < 2**15 else other for one, other in zip(small, large, strict=True)]
    section = measured(points)
    first, second = section.fields["measured"]
    assert "from" not in first
    assert parse_bytes(second["from"]) == pytest.approx(2**16, rel=1e-9)
    cluster = Cluster.model_validate(BASE | {"collectives": section.fields})
    for size, seconds in ((2**12, 1e-4 + 2**12 / 10e6), (2**20, 1e-2 + 2**20 / 30e6)):
        assert collective_cost("all_reduce", size, Group.of(range(4), 1), cluster).seconds == pytest.approx(seconds, rel=0.05)


def test_no_large_buffer_is_faster_than_the_link_that_carries_it() -> None:
    (bound,) = measured(sums(4, 4, 1e-3, 30e6), link_Bps=30e6).fields["measured"]
    assert parse_Bps(bound["bandwidth"]) == pytest.approx(20e6, rel=1e-3)
    (inside,) = measured(sums(4, 1, 1e-3, 30e6), link_Bps=30e6).fields["measured"]
    assert parse_Bps(inside["bandwidth"]) == pytest.approx(30e6, rel=0.02)
