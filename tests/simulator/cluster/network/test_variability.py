"""Variability of links: defaults by kind of fabric, and the slowest of several paths in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.variability import (
    fabric_of,
    of_fabric,
    slowest_path_deviation,
    slowest_path_quantiles,
    variability,
)
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.scenario.read import load_cluster


def cluster(name: str) -> Cluster:
    return load_cluster(name)


def varying(name: str, of: float) -> Cluster:
    """The cluster with a variability of its own."""
    found = cluster(name)
    assert found.network is not None
    return found.model_copy(update={"network": found.network.model_copy(update={"variability": of})})


@pytest.mark.parametrize(
    ("name", "fabric"),
    [
        ("dgx-h100", "infiniband"), ("mosaic-a100-80gb", "roce"), ("aws-p5", "efa"), ("perlmutter-a100", "slingshot"),
        ("jean-zay-a100", "omni-path"), ("p100-25gbe", "sockets"), ("netlab-100mbit", "sockets"), ("tpu-v5p-pod", "sockets"),
    ],
)  # fmt: skip
def test_the_fabric_between_nodes_follows_from_the_cluster(name: str, fabric: str) -> None:
    assert fabric_of(cluster(name)) == fabric


def test_the_fabric_inside_nodes_follows_from_the_link() -> None:
    assert [fabric_of(cluster(name), inside=True) for name in ("dgx-h100", "ec2", "cpu-2core", "tpu-v5p-pod")] == [
        "nvlink", "pcie", "loopback", "interchip",
    ]  # fmt: skip


def test_a_links_own_variability_takes_precedence() -> None:
    assert variability(cluster("dgx-h100")) == of_fabric("infiniband") > variability(cluster("dgx-h100"), inside=True)
    assert variability(varying("dgx-h100", 0.3)) == 0.3


@pytest.mark.parametrize("paths", [1, 2, 16, 128])
def test_the_slowest_path_is_the_largest_of_independent_exponential_variables(paths: int) -> None:
    probabilities = (np.arange(100_000) + 0.5) / 100_000
    logs = slowest_path_quantiles(0.05, paths, probabilities)
    assert logs.mean() == pytest.approx(0.05 * sum(1 / path for path in range(1, paths + 1)), rel=1e-3)
    assert logs.std() == pytest.approx(slowest_path_deviation(0.05, paths), rel=5e-3)
    drawn = np.random.default_rng(0).exponential(0.05, (20_000, paths)).max(axis=1)
    assert np.median(drawn) == pytest.approx(np.median(logs), rel=0.05)


def test_only_a_variability_of_its_own_widens_the_interval_of_bandwidth() -> None:
    bandwidth = QUANTITIES["network.bandwidth"]
    assert bandwidth.deviation(cluster("dgx-h100")) == pytest.approx(0.05, rel=1e-3)
    assert bandwidth.deviation(varying("dgx-h100", 0.0)) == pytest.approx(0.05, rel=1e-3)
    wide = bandwidth.deviation(varying("dgx-h100", 0.12))
    assert wide == pytest.approx(np.hypot(0.05, slowest_path_deviation(0.12, 32)), rel=1e-3)
