from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import topo
from tests.validator.calibration.imports.logs import FILES


def _node(path: Path, gpu: str = "") -> dict[str, Any]:
    found, matrix = topo.read(path, gpu)
    return topo.node(matrix, found)


def _matrix(folder: Path, rows: list[list[str]]) -> Path:
    heads = [f"GPU{number}" for number in range(len(rows))]
    lines = ["\t".join(["", *heads, "CPU Affinity", "NUMA Affinity"])]
    lines += ["\t".join([name, *row, "0-31", "0"]) for name, row in zip(heads, rows, strict=True)]
    path = folder / "topo.txt"
    path.write_text("\n".join(lines))
    return path


def _all(kind: str, gpus: int) -> list[list[str]]:
    return [["X" if one == other else kind for other in range(gpus)] for one in range(gpus)]


def test_network_cards_without_a_gpu_are_reported() -> None:
    found, matrix = topo.read(FILES / "dgx-h100.txt", "h100-80gb-sxm")
    topo.node(matrix, found)
    assert "5 network cards, of which 4 are behind a GPU's PCIe switch and count" in found.notes.lines()[0]
    rows = dict(topo.summary(matrix))
    assert rows["NUMA nodes"] == "0: GPU0, GPU1; 1: GPU2, GPU3"
    assert rows["pairs of GPUs"] == "6 by NV18"


def test_dgx_1_is_identified_by_its_links_and_gpu_list() -> None:
    link = _node(FILES / "dgx-1.txt")["link"]
    assert link == {"bandwidth": "150 GB/s", "latency": "5 us", "topology": {"kind": "hybrid_cube_mesh", "links": 6}}


@pytest.mark.parametrize(
    ("gpu", "kind", "gpus", "bandwidth", "topology"),
    [
        ("NVIDIA A100-SXM4-80GB", "NV12", 8, "300 GB/s", None),
        ("NVIDIA A100-SXM4-80GB", "NV4", 4, "300 GB/s", "mesh"),
        ("NVIDIA B200", "NV18", 8, "900 GB/s", None),
        ("Tesla V100-SXM2-16GB", "NV2", 4, "150 GB/s", "mesh"),
        ("NVIDIA RTX A6000", "NV4", 2, "56.24 GB/s", None),
        ("NVIDIA L4", "PHB", 4, "31.5 GB/s", None),
        ("NVIDIA GeForce RTX 5090", "PHB", 2, "63 GB/s", None),
    ],
)
def test_speeds_follow_from_the_gpus_data_sheet(
    gpu: str, kind: str, gpus: int, bandwidth: str, topology: str | None, tmp_path: Path
) -> None:
    link = _node(_matrix(tmp_path, _all(kind, gpus)), gpu)["link"]
    assert link["bandwidth"] == bandwidth
    assert link.get("topology", {}).get("kind") == topology


def test_pcie_switches_and_sockets_give_a_tree(tmp_path: Path) -> None:
    kinds = [["PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)]
    link = _node(_matrix(tmp_path, kinds), "Tesla P100-PCIE-16GB")["link"]
    tree = {"kind": "pcie_tree", "per_switch": 2, "switches_per_socket": 2, "between_sockets": "15.75 GB/s"}
    assert link["topology"] == tree


def test_bridges_between_some_gpus_do_not_connect_all(tmp_path: Path) -> None:
    kinds = [["X" if a == b else "NV12" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]
    found, matrix = topo.read(_matrix(tmp_path, kinds), "NVIDIA H100 NVL")
    assert topo.node(matrix, found)["link"]["bandwidth"] == "63 GB/s"
    assert any("NVLink connects GPU0–GPU1, GPU2–GPU3 but not all" in line for line in found.notes.lines())


def test_unequal_links_are_written_individually(tmp_path: Path) -> None:
    kinds = [["X", "NV2", "NV1"], ["NV2", "X", "NV1"], ["NV1", "NV1", "X"]]
    link = _node(_matrix(tmp_path, kinds), "v100-16gb-sxm2")["link"]
    assert link["topology"]["links"][0] == {"between": [0, 1], "bandwidth": "50 GB/s"}
    assert len(link["topology"]["links"]) == 3


def test_a_missing_gpu_name_is_requested(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not name the GPU; give --gpu"):
        _node(_matrix(tmp_path, _all("NV18", 8)))
    with pytest.raises(InputError, match="'GPU of tomorrow' is unknown"):
        _node(_matrix(tmp_path, _all("NV18", 8)), "GPU of tomorrow")


def test_one_gpu_needs_no_link(tmp_path: Path) -> None:
    assert _node(_matrix(tmp_path, _all("NV18", 1))) == {"devices": 1}


def test_a_truncated_line_is_reported_and_its_column_used(tmp_path: Path) -> None:
    path = _matrix(tmp_path, _all("NV18", 4))
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    found, matrix = topo.read(path, "h100-80gb-sxm")
    assert topo.node(matrix, found)["link"]["bandwidth"] == "450 GB/s"
    assert "no line for GPU3" in found.notes.lines()[0]


def test_an_unknown_connection_class_is_reported_with_its_line(tmp_path: Path) -> None:
    path = _matrix(tmp_path, _all("NV18", 3))
    path.write_text(path.read_text().replace("NV18\tX", "WARP\tX", 1))
    found, matrix = topo.read(path, "h100-80gb-sxm")
    assert set(matrix.pairs().values()) == {"NV18"}
    assert found.notes.lines() == [f"{path}:3: WARP for GPU0 in place of a class of link; its column is used instead"]


@pytest.mark.parametrize("text", ["", "GPU[0] : (Topology) Numa Node: 0\n", "\tGPU0\tGPU1\n"])
def test_files_without_a_matrix_give_a_one_line_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="expected the matrix that `nvidia-smi topo -m` prints") as error:
        topo.read(path)
    assert "\n" not in str(error.value)


def test_control_characters_are_escaped_in_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (FILES / "dgx-h100.txt").read_bytes()
    path = tmp_path / "m.txt"
    path.write_bytes(content.replace(b"NODE\tSYS", b"NODE\x05SYS", 1))
    assert scaleproof.main(["import", "topo", str(path), "--gpu", "h100-80gb-sxm"]) == 0
    reported = "".join(capsys.readouterr())
    assert r"NODE\x05SYS" in reported
    assert reported.replace("\n", "").isprintable()
