"""What an archive of a GPU check has, as the project reads it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import NamedTuple

from scaleproof.proof.gpu_check.ledger import FUNCTIONAL
from scaleproof.reports.read import history, results
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster, load_device
from scaleproof.validator.calibration.cluster_file.files import points_path
from scaleproof.validator.kernels.from_points import kernels_path
from scaleproof.validator.kernels.table import KernelTable
from scaleproof.validator.kernels.table import read as read_kernels
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.points import Point


class Unpacked(NamedTuple):
    """reconciled, shared: measured runs by scenario, of ranks with a device each, and of those that share devices. device: None
    if no data sheet ships."""

    folder: Path
    steps: dict[str, str]
    provenance: dict[str, str]
    cluster: Cluster
    device: Device | None
    points: list[Point]
    kernels: KernelTable
    reconciled: dict[str, Run]
    shared: dict[str, Run]


def unpacked(archive: Path, to: Path) -> Unpacked:
    """Unpacks an archive into a folder and reads each of its files."""
    with tarfile.open(archive) as packed:
        assert all(member.isfile() and not member.uname and not member.uid for member in packed)
        packed.extractall(to, filter="data")
    (folder,) = to.iterdir()
    assert archive.name == f"{folder.name}.tar.gz"
    assert not [path for path in folder.rglob("*") if path.name.startswith(".") or path.suffix in (".lock", ".part", ".whl")]
    for path in folder.glob("scenarios/**/*.yaml"):
        load(path)
    for path in folder.rglob("*.html"):
        assert "</html>" in path.read_text()
    # runs that other work disturbs are not in it
    if (folder / history.FILE).exists():
        assert history.read(folder)
    for part in (folder, folder / FUNCTIONAL):
        if part.exists():
            assert results.read(part)
    texts = (folder / "provenance.txt").read_text().partition("\n\n")[0].splitlines()
    device = folder / "device.yaml"
    steps = json.loads((folder / "results.json").read_text())["steps"]
    cluster = folder / "cluster.yaml"
    return Unpacked(
        folder, {name: step["state"] for name, step in steps.items()}, dict(line.split(": ", 1) for line in texts if line),
        load_cluster(cluster), load_device(device) if device.exists() else None, tables.read(points_path(cluster)),
        read_kernels(kernels_path(cluster)), _runs(folder / "runs"), _runs(folder / FUNCTIONAL),
    )  # fmt: skip


def _runs(folder: Path) -> dict[str, Run]:
    for predicted in folder.glob("*/predicted"):
        assert load_run(predicted).spans is not None
    return {path.parent.name: load_run(path) for path in folder.glob("*/measured")}
