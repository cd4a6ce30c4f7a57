"""What probes found of GPUs becomes a cluster file that says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration import gpu_sizes
from scaleproof.validator.calibration.cluster_file.files import points_path, write
from scaleproof.validator.calibration.cluster_file.from_points import CalibrationFacts, cluster_from_points
from scaleproof.validator.calibration.fit.gpu import fitted_shares, machine
from scaleproof.validator.kernels.attention import AttentionShapes
from scaleproof.validator.kernels.attention import predicted_s as predicted_attention_s
from scaleproof.validator.kernels.devices import shipped
from scaleproof.validator.kernels.products import ProductShapes, predicted_s
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.gpu import DeviceFacts
from scaleproof.validator.probe.points import Point
from tests.validator.verdicts import in_bulk

SHAPES = [(side, side, side) for side in (512, 1024, 2048, 4096, 8192)] + [(8192, 2304, 768), (8192, 768, 3072)]


def facts(
    name: str = "NVIDIA H200", capability: Sequence[int] = (9, 0), devices: int = 1, architecture: str = ""
) -> DeviceFacts:
    return {
        "name": name,
        "devices": devices,
        "capability": list(capability),
        "architecture": architecture,
        "processors": 132,
        "memory_bytes": 140 * 2**30,
    }


def point(probe: str, what: str, size: float, seconds: float, group: str = "", **numbers: float) -> Point:
    return Point(probe, what, "rank 0", (0,), group, size, "", (seconds,), "narrow", numbers=numbers)


def products(seconds: Sequence[float], precision: str = "bf16") -> list[Point]:
    return [
        point("matmul", f"{precision} {m}x{n}x{k}", 2.0 * m * n * k, s, m=m, n=n, k=k)
        for (m, n, k), s in zip(SHAPES, seconds, strict=True)
    ]


def read_back(points: Sequence[Point], folder: Path, found: DeviceFacts, sizes: gpu_sizes.GpuSizes = gpu_sizes.FULL) -> Cluster:
    base = machine(found, sizes)
    context = CalibrationFacts("local", tuple([0] * base["node"]["devices"]), "fp32", base, {"host": "here"}, on_gpus=True)
    path = folder / "cluster.yaml"
    write(cluster_from_points(points, context)[0], path, [*points, context.point()])
    assert CalibrationFacts.of(tables.read(points_path(path)), "") == context, "so that the table can be fitted again"
    return load_cluster(path)


def speed(tile_share: float, sustained_share: float) -> Speed:
    device = shipped("NVIDIA H200")
    assert device is not None
    assert device.kernels is not None
    kernels = device.kernels.model_copy(update={"tile_share": tile_share, "sustained_share": sustained_share})
    return Speed(kernels, device.peak_flops["bf16"], device.memory_bandwidth_Bps, 2)


def timed(with_speed: Speed) -> list[Point]:
    """Products as a device of that speed would take them."""
    m, n, k = np.array(SHAPES, dtype=np.float64).T
    return products(products_s(with_speed, m, n, k, np.ones_like(m), 2 * (m * k + k * n), 2 * m * n).tolist())


def test_a_device_that_ships_keeps_its_data_sheets_peaks(tmp_path: Path) -> None:
    points = timed(speed(0.8, 0.7))
    points += [point("memory", what, 2**26, 1e-5) for what in ("copy", "gelu")]
    points += [point("memory", "copy", 2**30, 2**30 / 4.08e12), point("memory", "gelu", 2**30, 2**30 / 4.5e12)]
    points += [point("launch", what, 1, s) for what, s in (("issue", 4e-6), ("module", 15e-6), ("graph", 2e-6))]
    device, known = read_back(points, tmp_path, facts()).device, shipped("NVIDIA H200")
    assert known is not None
    assert device.kernels is not None
    assert device.peak_flops == known.peak_flops
    assert device.memory_bandwidth_Bps == known.memory_bandwidth_Bps
    assert device.memory_bytes == pytest.approx(140 * 2**30)
    assert device.kernels.memory_share == pytest.approx(0.85, rel=1e-3), "what is moved within a cache does not count"
    assert (device.kernels.launch_s, device.kernels.issue_s) == pytest.approx((2e-6, 4e-6))
    assert device.kernels.host_slowdown == pytest.approx(1.5), "of the 10 us that pytorch-ddp assumes"
    assert device.kernels.flash_ramp_keys == known.kernels.flash_ramp_keys  # type: ignore[union-attr]


def test_rates_of_products_are_fitted_to_many_shapes_and_those_of_attention_kept(tmp_path: Path) -> None:
    device = shipped("NVIDIA H100 80GB HBM3")
    assert device is not None
    assert device.kernels is not None
    shapes = [*gpu_sizes.FULL.products, *gpu_sizes.FULL.more_products]
    m, n, k = np.array(shapes, dtype=np.float64).T
    own = ProductShapes(m, n, k, np.ones_like(m))
    slower_s = 1.1 * predicted_s(device, "bf16", own)
    points = [
        point("matmul", f"bf16 {shape}", 1.0, s, m=shape[0], n=shape[1], k=shape[2])
        for shape, s in zip(shapes, slower_s.tolist(), strict=True)
    ]
    found = read_back(points, tmp_path, facts("NVIDIA H100 80GB HBM3")).device
    assert found.kernels is not None
    assert found.kernels.attention == device.kernels.attention
    assert found.kernels.products["bf16"].state == "measured"
    assert predicted_s(found, "bf16", own) == pytest.approx(slower_s, rel=0.25)
    assert np.median(np.abs(predicted_s(found, "bf16", own) / slower_s - 1)) < 0.05


@pytest.mark.parametrize("name", ["NVIDIA H200", "Unheard Of"])
def test_training_sustains_what_a_product_sustained_over_seconds(name: str, tmp_path: Path) -> None:
    """Bursts reach more; without sustained products the power limit is fitted to bursts."""
    bursts = [*timed(speed(0.8, 0.75)), point("memory", "copy", 4e9, 1e-3)]
    side, rate_flops = 8192, 480e12
    over_seconds = point("matmul", "sustained bf16 8192x8192x8192", 2.0 * side**3, 2.0 * side**3 / rate_flops, "sustained")
    over_seconds = replace(over_seconds, numbers={"m": side, "n": side, "k": side})
    other = replace(over_seconds, what="sustained fp16 8192x8192x8192", seconds=(1.0,))
    without, found = (read_back(points, tmp_path, facts(name)).device for points in (bursts, [*bursts, other, over_seconds]))
    assert found.peak_flops == without.peak_flops
    assert without.kernels is not None
    assert found.kernels is not None
    assert found.kernels.tile_share == without.kernels.tile_share
    size = np.array([float(side)])
    moved_bytes = 4 * size**2, 2 * size**2
    in_training_s = products_s(found.speed("bf16", found.kernels), size, size, size, np.ones(1), *moved_bytes)
    assert in_training_s == pytest.approx(2.0 * side**3 / rate_flops, rel=0.01)
    assert found.kernels.sustained_share < without.kernels.sustained_share


def test_rates_of_attention_are_fitted_to_both_passes(tmp_path: Path) -> None:
    """Backward passes that are slower than an H100's change the shares of the backward pass alone."""
    device = shipped("NVIDIA H100 80GB HBM3")
    assert device is not None
    assert device.kernels is not None
    columns = np.array(gpu_sizes.FULL.attentions * 2, dtype=float).T  # type: ignore[operator]
    is_backward = np.arange(columns.shape[1]) >= columns.shape[1] / 2
    shapes = AttentionShapes(*columns, backward=is_backward, measured_s=np.ones(len(is_backward)))
    seconds = predicted_attention_s(device, "bf16", shapes, "cudnn") * np.where(is_backward, 1.5, 1.0)
    names = ("batch", "seq", "heads", "kv_heads", "head_dim")
    points = [
        point("attention", f"bf16 shape{' backward' * backward}", 1.0, s, backend=3, **dict(zip(names, sizes, strict=True)))
        for sizes, s, backward in zip(columns.T.tolist(), seconds.tolist(), is_backward.tolist(), strict=True)
    ]
    found = read_back(points, tmp_path, facts("NVIDIA H100 80GB HBM3")).device
    assert found.kernels is not None
    rates, known = found.kernels.attention["cudnn"], device.kernels.attention_rates("cudnn")
    assert known is not None
    assert rates.state == "measured"
    assert rates.backward_product_share is not None
    assert rates.backward_product_share < 0.85 * rates.product_share * (known.backward_product_share or 0) / known.product_share
    assert predicted_attention_s(found, "bf16", shapes, "cudnn") == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize("shares", [(0.8, 0.7), (0.5, 0.9), (0.9, 0.4)])
def test_shares_that_are_fitted_explain_the_times_they_were_fitted_on(shares: tuple[float, float]) -> None:
    points = timed(speed(*shares))
    fitted = timed(speed(*fitted_shares(speed(1.0, 1.0), points)))
    assert [f.median_s for f in fitted] == pytest.approx([p.median_s for p in points], rel=0.05)


@pytest.mark.parametrize(
    ("capability", "architecture", "generation"),
    [
        ((9, 0), "", "hopper"),
        ((9, 4), "gfx942", "cdna"),
        *in_bulk(
            ((7, 0), "", "volta"),
            ((7, 5), "", "turing"),
            ((8, 6), "", "ampere-rtx"),
            ((8, 9), "", "ada"),
            ((10, 0), "", "blackwell"),
            ((12, 0), "", "blackwell-rtx"),
            ((9, 0), "gfx90a", "cdna"),
        ),
    ],
)
def test_a_device_that_does_not_ship_has_the_peaks_that_were_reached(
    capability: tuple[int, int], architecture: str, generation: str, tmp_path: Path
) -> None:
    points = [*products([1e-3] * len(SHAPES)), point("memory", "add", 3e9, 1e-3)]
    device = read_back(points, tmp_path, facts("Unheard Of", capability, architecture=architecture)).device
    assert device.kernels is not None
    assert device.kernels.generation == generation
    assert device.peak_flops == {"bf16": pytest.approx(2 * 8192**3 / 1e-3, rel=1e-3)}
    assert device.memory_bandwidth_Bps == pytest.approx(3e12)


def test_gpus_of_amd_that_are_not_modelled_are_refused() -> None:
    found = facts("AMD Radeon RX 7900 XTX", (11, 0), architecture="gfx1100")
    with pytest.raises(InputError, match=r"RX 7900 XTX \(gfx1100\): of AMD's GPUs only the Instinct"):
        machine(found, gpu_sizes.FULL)


def test_a_device_of_which_nothing_is_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no matrix product was timed, and no Unheard Of ships"):
        read_back([], tmp_path, facts("Unheard Of"))


def test_a_cpu_is_probed_as_a_gpu_in_tiny_sizes_only() -> None:
    with pytest.raises(InputError, match="torch finds no GPU"):
        machine(facts("CPU", (0, 0)), gpu_sizes.FULL)
    dry = Cluster.model_validate(machine(facts("CPU", (0, 0)), gpu_sizes.TINY))
    assert (dry.name, dry.devices) == (f"CPU: {gpu_sizes.TINY.label}", 2)
    assert dry.device.kernels is not None
    assert dry.device.kernels.generation == "cpu"


def test_layers_optimizers_links_and_collectives_are_lines_through_what_was_timed(tmp_path: Path) -> None:
    sizes = (4, 2**10, 2**14, 2**20)
    points = [replace(point("message", "send", n, 1e-5 + n * 1e-9, "same node"), ranks=(0, 1)) for n in sizes]
    points += [replace(point("collective", "all_reduce", n, 2e-5 + n * 2e-9, nodes=1), ranks=(0, 1)) for n in sizes]
    for n in (1, 2, 4):
        points.append(point("layer", "a forward", n, 1e-4 + n * 1e-5, "bf16", ranks=1))
        points.append(point("layer", "a backward", n, n * 2e-5, "bf16", ranks=1))
    points += [point("optimizer", "adam", n, 1e-5 + n * 1e-11, "bf16") for n in (10**6, 10**8)]

    read = read_back(points, tmp_path, facts(devices=2))

    assert (read.nodes, read.node.devices, read.node.cores) == (1, 2, None)
    assert read.node.link is not None
    assert (read.node.link.latency_s, read.node.link.bandwidth_Bps) == pytest.approx((1e-5, 1e9), rel=1e-2)
    assert read.uncertainty["node.link.bandwidth"].nominal, "of the data sheet"
    measured = read.collectives.exactly("all_reduce", 2, 1)
    assert measured is not None
    assert (measured.latency_s, measured.bandwidth_Bps) == pytest.approx((2e-5, 5e8), rel=1e-2)
    [layer], [optimizer] = read.device.measured_layers, read.device.measured_optimizers
    assert (layer.precision, optimizer.precision) == ("bf16", "bf16")
    assert layer.passes_s(8) == pytest.approx((1.8e-4, 1.6e-4), rel=1e-3)
    assert read.device.optimizer_s(10**7, "adam", "bf16") == pytest.approx(1.1e-4, rel=1e-3)
    assert optimizer.optimizer == "adam"


@pytest.mark.parametrize(("ratio", "duplex"), [(1.1, "full"), (1.9, "half")])
def test_messages_in_both_directions_show_a_half_duplex_link(ratio: float, duplex: str, tmp_path: Path) -> None:
    sizes = (4, 2**10, 2**14, 2**20)
    sends = [replace(point("message", "send", n, 1e-5 + n * 1e-9, "same node"), ranks=(0, 1)) for n in sizes]
    both = [replace(sends[-1], what="exchange", seconds=(ratio * sends[-1].median_s,))]
    link = read_back([*sends, *both], tmp_path, facts(devices=2)).node.link
    assert link is not None
    assert link.duplex == duplex
    assert (link.latency_s, link.bandwidth_Bps) == pytest.approx((1e-5, 1e9), rel=1e-2)


def test_unequal_parts_do_not_change_what_equal_ones_show(tmp_path: Path) -> None:
    points = [
        replace(point("collective", "alltoall", n, 2e-5 + n * 2e-9, "2 ranks on 1 node", nodes=1), ranks=(0, 1))
        for n in (2**14, 2**18, 2**22)
    ]
    uneven = [replace(one, what="alltoall uneven", seconds=(2 * one.median_s,)) for one in points]
    before, after = (read_back(given, tmp_path, facts(devices=2)) for given in (points, [*points, *uneven]))
    assert after.collectives == before.collectives
    assert after.uncertainty == before.uncertainty
    assert after.provenance["collective"].endswith("take 2.00 times as long (2 ranks on 1 node)")


def test_collectives_of_gpus_update_the_constants_of_those_not_measured(tmp_path: Path) -> None:
    """A measured group is predicted as measured; other operations follow the slower links that it shows."""
    ranks = tuple(range(8))
    points = timed(speed(0.8, 0.7))
    before = read_back(points, tmp_path, facts(devices=8))
    for size in (2**power for power in range(10, 31, 2)):
        time_s = 1.3 * collective_time("all_reduce", size, 8, before)
        group = ("ranks 0-7", ranks, "8 ranks on 1 nodes")
        points.append(Point("collective", "all_reduce", *group, size, "bytes", (time_s,), "narrow", numbers={"nodes": 1.0}))
    after = read_back(points, tmp_path, facts(devices=8))
    assert before.collectives.adjust == Adjust()
    assert after.collectives.adjust.launch > 1.05
    assert after.collectives.adjust.rate_inside < 0.95
    assert "constants of collectives" in after.provenance
    for size in (2**10, 2**28):
        assert 1.05 < collective_time("all_gather", size, 8, after) / collective_time("all_gather", size, 8, before) < 1.4
