from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file import files
from scaleproof.validator.calibration.imports import cluster, nccl_tests, topo
from scaleproof.validator.calibration.imports.reading import ImportResult
from tests.validator.calibration.imports.logs import FILES, SIZES, nccl_log

NODE = ["one"] * 8
TWO = ["one"] * 8 + ["two"] * 8


def _found(folder: Path, *logs: str) -> ImportResult:
    paths = [folder / f"{number}.log" for number in range(len(logs))]
    for path, log in zip(paths, logs, strict=True):
        path.write_text(log)
    return nccl_tests.read(paths)


def _written(folder: Path, found: ImportResult, base: str | None = None, node: dict[str, Any] | None = None) -> Cluster:
    measured = cluster.measured_collectives(found.points, found.notes)
    data = cluster.describe(found, files.read_base(base) if base else None, measured, node)
    files.write(data, folder / "made.yaml", found.points)
    return load_cluster(folder / "made.yaml")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"])
def test_predictions_equal_the_times_of_the_log(op: Op, tmp_path: Path) -> None:
    made = _written(tmp_path, _found(tmp_path, nccl_log(op, NODE, 30e-6, 200e9)))
    for size in SIZES:
        predicted = collective_cost(op, size, Group.of(8, 8), made)
        assert predicted.algorithm == "measured"
        # in place takes 2 % longer
        assert predicted.seconds == pytest.approx(1.01 * (30e-6 + size / 200e9), rel=0.03)


def test_without_a_base_links_follow_from_data_sheets_and_ring_times(tmp_path: Path) -> None:
    made = _written(tmp_path, _found(tmp_path, nccl_log("all_reduce", TWO, 50e-6, 100e9)))
    assert made.node.link is not None
    assert made.network is not None
    assert made.node.link.bandwidth_Bps == pytest.approx(450e9)
    assert made.network.bandwidth_Bps == pytest.approx(2 * 15 / 16 * 100e9, rel=0.03)
    assert "latency is assumed" in made.provenance["network"]


def test_sendrecv_logs_give_link_numbers_with_intervals(tmp_path: Path) -> None:
    made = _written(tmp_path, _found(tmp_path, nccl_log("sendrecv", ["one", "two"], 12e-6, 40e9)), base="dgx-h100")
    assert made.network is not None
    assert made.network.bandwidth_Bps == pytest.approx(8 * 40e9, rel=0.03)
    assert made.network.topology.kind == "rail_optimised"
    assert made.network.latency_s == pytest.approx(12e-6, rel=0.05)
    assert made.uncertainty["network.bandwidth"].nominal == "3200 Gbit/s"
    assert made.provenance["network"].endswith("times 8 cards")
    assert made.node.link is not None
    assert made.node.link.bandwidth_Bps == pytest.approx(450e9)


def test_a_base_keeps_numbers_that_were_not_measured(tmp_path: Path) -> None:
    base = yaml.safe_load(catalog.find_part("cluster", "dgx-h100").read_text())
    old = [{"op": op, "ranks": 8, "latency": "1 ms", "bandwidth": "1 GB/s"} for op in ("all_reduce", "broadcast")]
    base["collectives"] = {"measured": old}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    found = _found(tmp_path, nccl_log("all_reduce", NODE, 30e-6, 200e9))
    made = _written(tmp_path, found, base=str(tmp_path / "base.yaml"))
    assert [one.op for one in made.collectives.measured] == ["broadcast", "all_reduce"]
    assert made.nodes == 32


def test_a_base_of_different_machines_is_reported(tmp_path: Path) -> None:
    found = _found(tmp_path, nccl_log("all_reduce", TWO, 30e-6, 200e9))
    made = _written(tmp_path, found, base="dgx1")
    lines = found.notes.lines()
    assert made.nodes == 2
    assert any("measured on NVIDIA H100 80GB HBM3, but dgx1 has P100" in line for line in lines)
    assert any("the base is one node without a network; 2 nodes were measured" in line for line in lines)


def test_a_matrix_of_one_node_is_completed_by_logs_of_several(tmp_path: Path) -> None:
    """The node of `nvidia-smi topo -m` becomes a cluster with a network when a log of two nodes is imported into it."""
    found, matrix = topo.read(FILES / "dgx-1.txt")
    _written(tmp_path, found, node=topo.node(matrix, found))
    log = _found(tmp_path, nccl_log("all_reduce", TWO, 30e-6, 40e9))
    made = _written(tmp_path, log, base=str(tmp_path / "made.yaml"))
    assert made.nodes == 2
    assert made.name.startswith("2 x ")
    data = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert data["description"].startswith("2 nodes of ")
    assert [one.partition(":")[0] for one in data["provenance"]["imported"].split("; ")] == ["nvidia-smi topo -m", "nccl-tests"]
    assert made.network is not None
    assert {(one.ranks, one.nodes) for one in made.collectives.measured} == {(len(TWO), 2)}


def test_few_sizes_do_not_replace_a_fit_of_many(tmp_path: Path) -> None:
    _written(tmp_path, _found(tmp_path, nccl_log("all_reduce", NODE, 30e-6, 200e9)))
    few = _found(tmp_path, nccl_log("all_reduce", NODE, 300e-6, 20e9, sizes=[2**28]))
    made = _written(tmp_path, few, base=str(tmp_path / "made.yaml"))
    assert made.collectives.measured[-1].bandwidth_Bps == pytest.approx(200e9, rel=0.05)
    assert any("1 sizes do not replace the base's own measurements" in line for line in few.notes.lines())


def test_an_unknown_gpu_needs_a_base(tmp_path: Path) -> None:
    log = nccl_log("all_reduce", NODE, 30e-6, 200e9, gpu="GPU of tomorrow")
    with pytest.raises(InputError, match="'GPU of tomorrow' is not a shipped device; give --cluster"):
        _written(tmp_path, _found(tmp_path, log))


def test_sizes_without_bandwidth_information_are_skipped_and_reported(tmp_path: Path) -> None:
    found = _found(tmp_path, nccl_log("all_reduce", NODE, 30e-6, 200e9, sizes=[8, 64, 512, 1024]))
    assert not cluster.measured_collectives(found.points, found.notes)
    assert "times are all latency, so the bandwidth is unknown" in found.notes.lines()[-1]


def test_a_topology_matrix_keeps_measured_numbers(tmp_path: Path) -> None:
    sent = _found(tmp_path, nccl_log("sendrecv", ["one", "one"], 12e-6, 300e9))
    _written(tmp_path, sent, base="dgx-h100")
    (tmp_path / "made.yaml").rename(tmp_path / "base.yaml")
    found, matrix = topo.read(FILES / "dgx-h100.txt", "h100-80gb-sxm")
    made = _written(tmp_path, found, str(tmp_path / "base.yaml"), topo.node(matrix, found))
    assert made.node.devices == 4
    assert made.node.link is not None
    assert made.node.link.bandwidth_Bps == pytest.approx(300e9, rel=0.03)
    nominal = _written(tmp_path, topo.read(FILES / "dgx-h100.txt", "h100-80gb-sxm")[0], "dgx1", topo.node(matrix, found))
    assert nominal.node.link is not None
    assert nominal.node.link.bandwidth_Bps == pytest.approx(450e9)
