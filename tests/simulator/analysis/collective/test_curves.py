from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.curves import (
    CollectiveCurve,
    MeasuredSize,
    PredictedSize,
    drawn_sizes,
    predicted_curve,
)
from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.scenario.read import load_cluster

CLUSTER = load_cluster("dgx-h100")


def test_a_curve_is_the_collective_time_inside_its_interval() -> None:
    points = predicted_curve("all_reduce", Group.of(16, 8), CLUSTER, [2**30, 2**10, 2**20])
    assert [point.size_bytes for point in points] == [2**10, 2**20, 2**30]
    for point in points:
        assert point.seconds == collective_time("all_reduce", point.size_bytes, 16, CLUSTER)
        assert point.low_s < point.seconds < point.high_s


def test_the_finding_gives_the_errors_and_what_lies_inside() -> None:
    sizes = [PredictedSize(2.0**power, 2e-5, 1.5e-5, 2.5e-5) for power in (10, 20)]
    measured = tuple(MeasuredSize(time_s, size) for time_s, size in zip((2e-5, 4e-5), sizes, strict=True))
    curve = CollectiveCurve("a system", "all_reduce", 16, 2, "ring", tuple(sizes), measured)
    assert curve.group == "16 ranks on 2 nodes, ring"
    assert curve.finding == "2 times: 25.0 % off at the median, 50.0 % at most (1.00 MiB); 1 in the 90 % interval"


def test_powers_of_two_between_the_sizes_are_drawn() -> None:
    assert drawn_sizes([1000.0, 6000.0]) == [512, 1000, 1024, 2048, 4096, 6000, 8192]
    assert drawn_sizes([1024.0]) == pytest.approx([1024])
