"""Comparison of two clusters: equal, different, or within noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import scaleproof
from scaleproof.reports.descriptions.clusters import describe
from scaleproof.simulator.analysis.cluster_diff import ClusterDiff, QuantityRow, compare
from scaleproof.simulator.cluster import Cluster

DESCRIBED: dict[str, Any] = {
    "nodes": 4,
    "node": {"devices": 2, "cores": 1.9, "link": {"bandwidth": "5 GB/s", "latency": "40 us"}},
    "network": {"bandwidth": "480 Mbit/s", "latency": "60 us"},
    "device": {
        "name": "cpu",
        "peak": {"fp32": "100 GFLOP/s"},
        "memory": "8 GiB",
        "memory_bandwidth": "10 GB/s",
        "measured_optimizers": [{"optimizer": "adam", "precision": "fp32", "base": "10 us", "per_parameter": "1 ns"}],
    },
    "collectives": {"measured": [{"ranks": 4, "nodes": 4, "latency": "1 ms", "bandwidth": "30 MB/s"}]},
    "uncertainty": {"network.bandwidth": {"low": "470 Mbit/s", "high": "490 Mbit/s"}},
}


def cluster(**changes: Any) -> Cluster:
    return Cluster.model_validate(DESCRIBED | changes)


def network(bandwidth: str, low: str, high: str) -> Cluster:
    return cluster(
        network={"bandwidth": bandwidth, "latency": "60 us"}, uncertainty={"network.bandwidth": {"low": low, "high": high}}
    )


def row(found: ClusterDiff, what: str) -> QuantityRow:
    return next(row for row in found.rows if row.what == what)


def test_a_cluster_does_not_differ_from_itself() -> None:
    assert {row.verdict for row in compare(cluster(), cluster()).rows} == {"same"}
    assert describe(compare(cluster(), cluster())).notes[0].endswith("that both have differ by more than noise")


@pytest.mark.parametrize(
    ("bandwidth", "low", "high", "verdict"),
    [
        ("485 Mbit/s", "480 Mbit/s", "495 Mbit/s", "within noise"),
        ("500 Mbit/s", "495 Mbit/s", "505 Mbit/s", "differs"),
        ("240 Mbit/s", "239 Mbit/s", "241 Mbit/s", "differs"),
    ],
)
def test_overlapping_intervals_count_as_noise(bandwidth: str, low: str, high: str, verdict: str) -> None:
    rows = compare(cluster(), network(bandwidth, low, high))
    assert row(rows, "network.bandwidth").verdict == verdict
    assert row(rows, "network.latency").verdict == "same"


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_swapping_clusters_inverts_ratios_and_keeps_verdicts(left: float, right: float) -> None:
    ours, theirs = (network(f"{rate} Mbit/s", f"{rate * 0.98} Mbit/s", f"{rate * 1.02} Mbit/s") for rate in (left, right))
    one, other = (row(compare(*pair), "network.bandwidth") for pair in ((ours, theirs), (theirs, ours)))
    assert one.verdict == other.verdict
    assert one.ratio is not None
    assert other.ratio is not None
    assert one.ratio * other.ratio == pytest.approx(1)


def test_a_relative_interval_applies_to_all_its_quantities() -> None:
    other = DESCRIBED["device"] | {"peak": {"fp32": "103 GFLOP/s"}}
    shares = {"device": {"low": "96 %", "high": "104 %"}}
    assert row(compare(cluster(), cluster(device=other)), "device.peak fp32").verdict == "differs"
    assert row(compare(cluster(uncertainty=shares), cluster(device=other)), "device.peak fp32").verdict == "within noise"


def test_quantities_of_one_cluster_only_are_reported() -> None:
    alone = cluster(network=None, nodes=1, collectives={}, uncertainty={})
    rows = compare(cluster(), alone)
    assert row(rows, "network.bandwidth").verdict == "only in A"
    assert row(rows, "all_reduce over 4 ranks on 4 nodes, 1 MiB").ratio is None
    assert row(compare(alone, cluster()), "network.bandwidth").verdict == "only in B"


def test_slow_links_and_collectives_are_compared() -> None:
    slow = DESCRIBED["network"] | {"exceptions": [{"at": [3], "bandwidth": "240 Mbit/s"}]}
    collectives = {"measured": [{"ranks": 4, "nodes": 4, "latency": "1 ms", "bandwidth": "15 MB/s"}]}
    rows = compare(cluster(), cluster(network=slow, collectives=collectives))
    assert row(rows, "network.bandwidth at 3").verdict == "only in B"
    assert row(rows, "all_reduce over 4 ranks on 4 nodes, 1 MiB").verdict == "differs"
    assert row(rows, "all_reduce over 4 ranks on 4 nodes, small").verdict == "same"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = scaleproof.main(["cluster", "diff", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(DESCRIBED))
    code, out, _ = run(capsys, "netlab-500mbit", str(path))
    assert code == 0
    assert "netlab-500mbit" in out.splitlines()[0]
    assert "mine" in out.splitlines()[0]
    code, out, _ = run(capsys, "netlab-500mbit", str(path), "--json")
    found = {row["what"]: row for row in json.loads(out)["rows"]}
    assert found["network.bandwidth"]["a"] == 500e6 / 8
    assert found["network.bandwidth"]["b_low"] == 470e6 / 8


def test_invalid_intervals_are_reported_with_their_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = yaml.safe_dump(DESCRIBED, sort_keys=False)
    path.write_text(text.replace("low: 470 Mbit/s", "low: -470 Mbit/s"))
    line = next(number for number, one in enumerate(text.splitlines(), 1) if one.strip() == "network.bandwidth:")
    code, _, err = run(capsys, "netlab-500mbit", str(path))
    assert code == 2
    (result,) = err.splitlines()
    assert f"mine.yaml:{line}:" in result
    assert "uncertainty.network.bandwidth" in result
    assert "negative" in result
