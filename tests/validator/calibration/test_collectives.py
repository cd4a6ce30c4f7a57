"""Collectives: one line per operation and group, which predictions then go by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cluster import Cluster
from simulator.cluster.algorithms import Group
from simulator.cluster.cost import collective_cost
from simulator.units import parse_Bps, parse_time_s
from tests.validator.calibration.made import BASE, SIZES, sums
from validator.calibration.collectives import measured
from validator.calibration.section import Section


def test_each_operation_and_group_has_its_line() -> None:
    section = measured([*sums(4, 4, 1e-3, 30e6), *sums(2, 2, 5e-4, 50e6), *sums(4, 4, 2e-3, 10e6, "alltoall")])
    found = {(one["op"], one["ranks"], one.get("nodes", 1)): one for one in section.fields["measured"]}
    assert set(found) == {("all_reduce", 4, 4), ("all_reduce", 2, 2), ("alltoall", 4, 4)}
    assert parse_Bps(found["all_reduce", 4, 4]["bandwidth"]) == pytest.approx(30e6, rel=0.02)
    assert parse_time_s(found["alltoall", 4, 4]["latency"]) == pytest.approx(2e-3, rel=0.05)
    assert section.intervals["collectives"]["measurements"] == 3 * len(SIZES[3:]) * 9


def test_predictions_take_what_was_measured() -> None:
    section = measured(sums(4, 4, 1e-3, 30e6))
    cluster = Cluster.model_validate(BASE | {"collectives": section.fields, "uncertainty": section.intervals})
    cost = collective_cost("all_reduce", 2**20, Group.of(range(4), 1), cluster)
    assert cost.seconds == pytest.approx(1e-3 + 2**20 / 30e6, rel=0.02)


def test_a_group_with_too_few_sizes_is_left_out_and_told() -> None:
    section = measured([*sums(4, 4, 1e-3, 30e6), *sums(2, 2, 1e-3, 30e6)[:2]])
    assert [one["ranks"] for one in section.fields["measured"]] == [4]
    (line,) = section.told
    assert "all_reduce over 2 ranks on 2 nodes: 2 sizes are too few to fit; give 3" in line


def test_what_was_not_measured_is_not_there() -> None:
    failed = [replace(point, seconds=(), stopped="failed: timed out") for point in sums(4, 4, 1e-3, 30e6)]
    assert measured([]) == measured(failed) == Section()
