"""The cluster file: it loads, and names measured and nominal numbers and points that could not be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file.files import points_path, write
from scaleproof.validator.calibration.cluster_file.from_points import cluster_from_points
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.points import Point
from tests.validator.calibration.made import BANDWIDTH_BPS, BASE, all_pairs, facts, sends, sums, times

POINTS = [*sends(all_pairs(4)), *sums(4, 4, 1e-3, 30e6)]


def test_the_written_file_is_a_cluster_with_measured_numbers(tmp_path: Path) -> None:
    cluster, reported = cluster_from_points(POINTS, facts())
    assert not reported
    path = tmp_path / "lab.yaml"
    write(cluster, path, POINTS)
    read = load_cluster(path)
    assert read.network is not None
    assert read.network.bandwidth_Bps == pytest.approx(BANDWIDTH_BPS, rel=0.02)
    assert read.collectives.exactly("all_reduce", 4, 4) is not None
    assert read.collectives.library == "gloo"
    assert read.uncertainty["network.bandwidth"].nominal == "500 Mbit/s"
    low, high = QUANTITIES["network.bandwidth"].slowdown_interval(read)
    assert 0.9 < low <= 1.01
    assert 0.99 < high < 1.1
    assert read.provenance["host"] == "here"
    assert "message 72 narrow and 0 by time" in read.provenance["stopped"]
    assert tables.read(points_path(path)) == POINTS


def test_cpu_clusters_default_to_the_gloo_framework() -> None:
    assert cluster_from_points(POINTS, facts())[0]["framework"] == "gloo-cpu"
    assert cluster_from_points(POINTS, facts(BASE | {"framework": "pytorch-ddp"}))[0]["framework"] == "pytorch-ddp", (
        "as described"
    )
    assert "framework" not in cluster_from_points(POINTS, facts(on="cluster"))[0], "a GPU each"


def test_unprobed_quantities_keep_their_described_values() -> None:
    cluster, _ = cluster_from_points(sums(4, 4, 1e-3, 30e6), facts())
    assert cluster["network"] == BASE["network"]
    assert cluster["device"] == BASE["device"]
    assert set(cluster["uncertainty"]) == {"collectives"}


def test_nominal_numbers_survive_a_second_calibration() -> None:
    once, _ = cluster_from_points(POINTS, facts())
    again, _ = cluster_from_points(POINTS, facts(once))
    assert again["uncertainty"]["network.bandwidth"]["nominal"] == "500 Mbit/s"
    Cluster.model_validate(again)


def test_too_few_sizes_and_failed_probes_are_reported_and_the_rest_is_used() -> None:
    few = [point for point in sends(all_pairs(4)) if point.size < 64]
    failed = Point("overlap", "computation with communication", "", (), "", 0, "", (), "failed: rank 2 made no progress")
    cluster, reported = cluster_from_points([*few, *sums(4, 4, 1e-3, 30e6), failed], facts())
    assert cluster["network"] == BASE["network"]
    assert cluster["collectives"]["measured"]
    assert any("messages between nodes: 2 sizes are too few to fit; give 3" in line for line in reported)
    assert any("failed: rank 2 made no progress" in line for line in reported)
    assert "too few" in cluster["provenance"]["odd"]
    assert not any("\n" in line for line in reported)


def test_bimodal_times_are_reported() -> None:
    points = sends(all_pairs(2))
    points[0] = replace(points[0], seconds=(1e-4,) * 8 + (9e-4,) * 8)
    _, reported = cluster_from_points(points, facts(nodes=range(2)))
    assert any(line.startswith("send rank 0 to rank 1, 4 B: two modes") for line in reported)


def test_a_slower_computing_rank_is_named() -> None:
    layers = [
        Point(
            "layer", "block forward", f"rank {rank}", (rank,), "", size, "samples",
            times((2.0 if rank == 2 else 1.0) * size * 1e-3, seed=rank), "narrow", 1.0, {"ranks": 4.0},
        )
        for rank in range(4)
        for size in (1, 8)
    ]  # fmt: skip
    _, reported = cluster_from_points([*POINTS, *layers], facts())
    assert any(line.startswith("rank 2 computes at 50 % of the others") for line in reported)


def test_an_undescribed_machine_needs_device_probes() -> None:
    with pytest.raises(InputError, match="do not give the device of a rank"):
        cluster_from_points(sends(all_pairs(4), "same node"), facts(None, nodes=[0] * 4, on="local"))


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        (("network", "latency"), "-60 us", "negative"),
        (("uncertainty", "network.bandwidth", "low"), "0 Mbit/s", "is no interval"),
        (("uncertainty", "network.bandwidth", "high"), "1 Mbit/s", "is no interval"),
        (("uncertainty", "network.latency", "low"), "3 GB", "not a unit of time"),
        (("uncertainty", "network.bandwith"), {"low": "1 us", "high": "2 us"}, "no such quantity"),
        (("uncertainty", "optimizer"), {"low": "96 %", "high": "104 %"}, "no such number"),
        (("uncertainty", "device"), {"low": "-4 %", "high": "104 %"}, "cannot read '-4 %'"),
    ],
)
def test_invalid_edited_numbers_are_reported_with_their_place(
    tmp_path: Path, path: tuple[str, ...], value: Any, reported: str
) -> None:
    cluster, _ = cluster_from_points(POINTS, facts())
    parent = cluster
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    file = tmp_path / "edited.yaml"
    file.write_text(yaml.safe_dump(cluster, sort_keys=False))
    with pytest.raises(InputError) as caught:
        load_cluster(file)
    line, column = str(caught.value).removeprefix(f"{file}:").split(":")[:2]
    assert (
        file.read_text()
        .splitlines()[int(line) - 1][int(column) - 1 :]
        .startswith(path[1] if path[0] == "uncertainty" else path[-1])
    )
    assert reported in str(caught.value)


def test_points_with_an_invalid_cluster_description_are_rejected() -> None:
    odd = {**BASE, "device": {**BASE["device"], "peak": {"fp02": "1 TFLOP/s"}}}
    with pytest.raises(InputError, match=r"the description of the measured cluster .* is invalid; measure again"):
        cluster_from_points(POINTS, facts(odd))
