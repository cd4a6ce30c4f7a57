"""Rates of a host recover those of simulated copies and steps, and predictions use them."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.units import parse_Bps
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.calibration.cluster_file.from_points import cluster_from_points
from scaleproof.validator.calibration.fit import host
from scaleproof.validator.probe.points import Point
from tests.validator.calibration.made import BASE, facts, times

TO_DEVICE_Bps, TO_HOST_Bps, ADAM = 20e9, 10e9, 4e9


def point(probe: str, what: str, size: float, rate: float, **numbers: float) -> Point:
    seconds = times(1e-5 + size / rate, seed=int(size))
    return Point(probe, what, "rank 0", (0,), "", size, "", seconds, "narrow", 1.0, numbers)


POINTS = [
    *(point("host_copy", "host to device", size, TO_DEVICE_Bps) for size in (2**16, 2**28)),
    *(point("host_copy", "device to host", size, TO_HOST_Bps) for size in (2**16, 2**28)),
    point("host_copy", "device 0 to 1", 2**28, 1e9),
    point("host_adam", "adam", 2**24, ADAM, cores=16),
]


def test_the_slower_direction_of_large_copies_is_the_rate_of_the_link() -> None:
    section = host.section(POINTS)
    assert parse_Bps(section.fields["link"]) == pytest.approx(TO_HOST_Bps, rel=0.03)
    assert section.fields["adam_rate"] == pytest.approx(ADAM, rel=0.03)
    low, high = (float(section.intervals["node.host.adam_rate"][end]) for end in ("low", "high"))
    assert low < section.fields["adam_rate"] < high
    assert host.section([]) == host.section(POINTS[4:5]), "copies between devices alone say nothing of a host"


def test_predictions_use_the_measured_host_and_keep_the_rest_of_its_description() -> None:
    given: dict[str, Any] = {**BASE, "node": {**BASE["node"], "host": {"memory": "64 GiB", "adam_rate": 1e9}}}
    cluster, _ = cluster_from_points(POINTS, facts(given))
    assert cluster["node"]["host"].keys() == {"memory", "adam_rate", "link"}
    assert cluster["uncertainty"]["node.host.adam_rate"]["nominal"] == "1e+09"
    assert "billion parameters/s on 16 cores" in cluster["provenance"]["host_adam"]
    assert "device to host" in cluster["provenance"]["host_copy"]
    changed = {
        "model": {"kind": "gpt", "layers": 2, "hidden": 256, "heads": 4, "vocabulary": 512, "sequence": 64}, "batch": 2,
        "training": {"optimizer": "adam", "offload": ["optimizer"]}, "strategy": {"kind": "data_parallel", "workers": 1},
    }  # fmt: skip
    before, after = (predict(load({**changed, "cluster": one}), interval=False) for one in (given, cluster))
    assert after.step_time_s < before.step_time_s
    assert "assumed are" not in after.provenance.get("notes", "")
