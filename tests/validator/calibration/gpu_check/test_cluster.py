"""What probes found becomes a cluster file that says the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.kernels import Speed, products_s
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration import gpus
from scaleproof.validator.calibration.cluster_file.files import write
from scaleproof.validator.calibration.gpu_check.cluster import ProbeResults, describe, fitted_shares
from scaleproof.validator.calibration.gpus import shipped

SHAPES = [(side, side, side) for side in (512, 1024, 2048, 4096, 8192)] + [(8192, 2304, 768), (8192, 768, 3072)]


def facts(name: str = "NVIDIA H200", capability: Sequence[int] = (9, 0)) -> Any:
    memory_bytes = 140 * 2**30
    return {"name": name, "devices": 1, "capability": list(capability), "processors": 132, "memory_bytes": memory_bytes}


def products(seconds: Sequence[float], precision: str = "bf16") -> list[Any]:
    return [
        {"precision": precision, "m": m, "n": n, "k": k, "seconds": s} for (m, n, k), s in zip(SHAPES, seconds, strict=True)
    ]


def moved(*points: tuple[int, float], what: str = "copy") -> list[Any]:
    return [{"what": what, "moved_bytes": size, "seconds": seconds} for size, seconds in points]


def read_back(found: ProbeResults, folder: Path, label: str = "") -> Cluster:
    path = folder / "cluster.yaml"
    write(describe(found, label), path)
    return load_cluster(path)


def speed(tile_share: float, sustained_share: float) -> Speed:
    device = shipped("NVIDIA H200")
    assert device is not None
    assert device.kernels is not None
    kernels = device.kernels.model_copy(update={"tile_share": tile_share, "sustained_share": sustained_share})
    return Speed(kernels, device.peak_flops["bf16"], device.memory_bandwidth_Bps, 2)


def timed(with_speed: Speed) -> list[Any]:
    """Products as a device of that speed would take them."""
    m, n, k = np.array(SHAPES, dtype=np.float64).T
    return products(products_s(with_speed, m, n, k, np.ones_like(m), 2 * (m * k + k * n), 2 * m * n).tolist())


def test_a_device_that_ships_keeps_its_data_sheets_peaks(tmp_path: Path) -> None:
    found = ProbeResults(facts(), 1, matmuls=timed(speed(0.8, 0.7)), memory=moved((2**26, 1e-5), (2**30, 2**30 / 4.08e12)))
    found.launches = {"issue_s": 4e-6, "module_s": 15e-6, "launch_s": 2e-6}
    device, known = read_back(found, tmp_path).device, shipped("NVIDIA H200")
    assert known is not None
    assert device.kernels is not None
    assert device.peak_flops == known.peak_flops
    assert device.memory_bandwidth_Bps == known.memory_bandwidth_Bps
    assert device.memory_bytes == pytest.approx(140 * 2**30)
    assert device.kernels.memory_share == pytest.approx(0.85, rel=1e-3), "what is moved within a cache does not count"
    assert (device.kernels.launch_s, device.kernels.issue_s) == pytest.approx((2e-6, 4e-6))
    assert device.kernels.host_slowdown == pytest.approx(1.5), "of the 10 us that pytorch-ddp assumes"
    assert device.kernels.flash_ramp_keys == known.kernels.flash_ramp_keys  # type: ignore[union-attr]


@pytest.mark.parametrize("shares", [(0.8, 0.7), (0.5, 0.9), (0.9, 0.4)])
def test_shares_that_are_fitted_explain_the_times_they_were_fitted_on(shares: tuple[float, float]) -> None:
    timings = timed(speed(*shares))
    fitted = timed(speed(*fitted_shares(speed(1.0, 1.0), timings)))
    pairs = zip(fitted, timings, strict=True)
    assert [f["seconds"] for f, _ in pairs] == pytest.approx([t["seconds"] for t in timings], rel=0.05)


@pytest.mark.parametrize(
    ("capability", "generation"),
    [((7, 0), "volta"), ((7, 5), "turing"), ((8, 6), "ampere"), ((9, 0), "hopper"), ((12, 0), "blackwell"), ((0, 0), "cpu")],
)
def test_a_device_that_does_not_ship_has_the_peaks_that_were_reached(
    capability: tuple[int, int], generation: str, tmp_path: Path
) -> None:
    found = ProbeResults(facts("Unheard Of", capability), 1, matmuls=products([1e-3] * len(SHAPES)))
    device = read_back(found, tmp_path).device
    assert device.kernels is not None
    assert device.kernels.generation == generation
    assert device.peak_flops["bf16"] == pytest.approx(2 * 8192**3 / 1e-3, rel=1e-3)


def test_a_device_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(RunError, match="no matrix product was timed, and no Unheard Of ships"):
        describe(ProbeResults(facts("Unheard Of"), 1), "")


def test_layers_optimizers_links_and_collectives_are_lines_through_what_was_timed(tmp_path: Path) -> None:
    found = ProbeResults(facts(), 2, messages=moved((4, 1e-5 + 4e-9), (2**20, 1e-5 + 2**20 * 1e-9)))
    found.allreduces = {2: moved((4, 2e-5 + 8e-9), (2**20, 2e-5 + 2**20 * 2e-9))}
    found.layers = {
        "bf16": [{"signature": "a", "samples": n, "forward_s": 1e-4 + n * 1e-5, "backward_s": n * 2e-5} for n in (1, 2, 4)]
    }
    found.optimizers = {"bf16": [{"optimizer": "adam", "parameters": n, "seconds": 1e-5 + n * 1e-11} for n in (10**6, 10**8)]}

    read = read_back(found, tmp_path)

    assert (read.nodes, read.node.devices, read.node.cores) == (1, 2, None)
    assert read.node.link is not None
    assert (read.node.link.latency_s, read.node.link.bandwidth_Bps) == pytest.approx((1e-5, 1e9), rel=1e-3)
    measured = read.collectives.exactly("all_reduce", 2, 1)
    assert measured is not None
    assert (measured.latency_s, measured.bandwidth_Bps) == pytest.approx((2e-5, 5e8), rel=1e-3)
    [layer], [optimizer] = read.device.measured_layers, read.device.measured_optimizers
    assert (layer.forward.at(8), layer.backward.at(8)) == pytest.approx((1.8e-4, 1.6e-4), rel=1e-3)
    assert read.device.optimizer_s(10**7, "adam", "bf16") == pytest.approx(1.1e-4, rel=1e-3)
    assert optimizer.optimizer == "adam"


def test_the_label_is_the_clusters_name(tmp_path: Path) -> None:
    assert read_back(ProbeResults(facts(), 1), tmp_path, "a dry run").name == "NVIDIA H200: a dry run"
    assert read_back(ProbeResults(facts(), 1), tmp_path).name == "NVIDIA H200"


def test_scenarios_on_it_train_with_what_was_measured(tmp_path: Path) -> None:
    assert read_back(ProbeResults(facts(), 1), tmp_path).framework == "pytorch-ddp"


def test_every_name_that_drivers_give_is_of_a_device_that_ships() -> None:
    assert set(gpus._SHIPPED.values()) <= set(catalog.names("devices"))
