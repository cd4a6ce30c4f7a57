from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from functools import cache

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.topology_kinds import HybridCubeMesh
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_cluster

pytestmark = pytest.mark.full

NAMES = catalog.names("clusters")
MEASURED = {name for name in NAMES if name.startswith(("cpu-", "netlab-"))}
# Names of documents: a paper, a vendor's data sheet or page, or a public repository (owner/name).
DOCUMENT = re.compile(
    r"arXiv \d{4}\.\d{5}|data sheet|white paper|reference architecture|\bpage\b|\bblog\b|\bslides\b|\w+/[\w.-]{2,}"
)
# Devices of a host where several hosts share an NVLink domain: NVIDIA's GB200 NVL72 page has 18 compute trays of four GPUs.
HOST_DEVICES = {"gb200-nvl72": 4, "gb300-nvl72": 4}
# Names in tables without a file, or with the file of another GPU.
SPELLINGS = {
    ("DGX-1", "V100-16GB"): "dgx1-v100-16gb",
    ("DGX-1", "V100-32GB"): "dgx1-v100",
    ("DGX A100", "A100-40GB"): "dgx-a100-40gb",
    ("DGX A100 cluster", "A100-80GB"): "dgx-a100",
}


@cache
def cluster(name: str) -> Cluster:
    return load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")


def published_rows() -> list[tuple[str, dict[str, str]]]:
    """Every row of the tables that name clusters, with the name of its file."""
    rows = []
    for table in ("transformer_training", "data_parallel_scaling"):
        with (catalog.ROOT / "published" / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                plain = re.sub(r"[ .]", "-", row["cluster"]).lower()
                rows.append((SPELLINGS.get((row["cluster"], row["gpu"]), plain), row))
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_cluster_has_a_plain_name_and_a_description(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert cluster(name).description


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_cluster_states_a_source(name: str) -> None:
    if name in MEASURED:
        assert {"host", "date"} <= set(cluster(name).provenance)
    else:
        assert DOCUMENT.search(cluster(name).source)


@pytest.mark.parametrize("name", ["bytedance-a100", "meta-h100", *sorted({name for name, _ in published_rows()})])
def test_every_cluster_of_the_published_tables_ships(name: str) -> None:
    assert name in NAMES


def test_published_rows_fit_the_cluster_that_they_name() -> None:
    """A row may use some devices of one node. Where hosts share an NVLink domain, the domain is the node."""
    for name, row in published_rows():
        node = cluster(name).node
        each, used = HOST_DEVICES.get(name, node.devices), int(row["gpus_per_node"])
        assert used == each or used == int(row["gpus"]) < each, name
        assert node.devices % each == 0, name
        assert re.split(r"[- ]", row["gpu"])[0] == cluster(name).device.name.split("-")[0], name
        assert int(row["gpus"]) <= node.devices or cluster(name).network is not None, name


def test_a_device_has_the_same_numbers_everywhere() -> None:
    found = defaultdict(set)
    for name in NAMES:
        found[cluster(name).device.name].add(cluster(name).device.model_dump_json())
    assert [device for device, numbers in found.items() if len(numbers) > 1] == []


def test_a_device_has_the_same_link_inside_every_node() -> None:
    found = defaultdict(set)
    for name in NAMES:  # slots of workstations have more or fewer PCIe lanes
        if (link := cluster(name).node.link) and not cluster(name).device.name.startswith("RTX"):
            found[cluster(name).device.name].add(link.bandwidth_Bps)
    assert [device for device, bandwidths in found.items() if len(bandwidths) > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_no_faster_than_the_links_inside_a_node(name: str) -> None:
    link, network = cluster(name).node.link, cluster(name).network
    if link is not None and network is not None:
        assert network.bandwidth_Bps / cluster(name).node.devices <= link.bandwidth_Bps


def test_a_cube_mesh_adds_up_all_nvlinks_of_a_gpu() -> None:
    nvlink_Bps = {"P100": 20e9, "V100": 25e9}  # each way, of NVLink 1 and 2
    found = set()
    for name in NAMES:
        link = cluster(name).node.link
        if link is not None and isinstance(link.topology, HybridCubeMesh):
            gpu = cluster(name).device.name.split("-")[0]
            assert link.bandwidth_Bps == link.topology.links * nvlink_Bps[gpu], name
            found.add(gpu)
    assert found == set(nvlink_Bps)


@pytest.mark.parametrize("name", NAMES)
def test_an_allreduce_over_two_nodes_has_a_finite_time(name: str) -> None:
    ranks = min(2, cluster(name).nodes) * cluster(name).node.devices
    seconds = collective_time("all_reduce", 64 * 2**20, ranks, cluster(name))
    assert math.isfinite(seconds)
    assert seconds > 0 or ranks == 1
