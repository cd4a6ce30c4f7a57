"""Fit of a GPU to points: peaks of the data sheet if the device ships, and measured values for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.simulator import frameworks
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Device
from scaleproof.simulator.cluster.device.kernels.parameters import Generation, Kernels, Speed, at_power_limit
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.scenario.dump import plain_spec
from scaleproof.validator.calibration.cluster_file.section import Section, rate_text, seconds_text
from scaleproof.validator.calibration.fit.device import measured_layers, measured_optimizers
from scaleproof.validator.calibration.gpu_links import ASSUMED_LATENCY, nominal_Bps
from scaleproof.validator.kernels.devices import shipped
from scaleproof.validator.kernels.fit import LEAST_ROWS, fit_device, forward_only, kinds
from scaleproof.validator.kernels.from_points import rows
from scaleproof.validator.kernels.table import of_rows
from scaleproof.validator.probe.points import SUSTAINED, Point, timed

if TYPE_CHECKING:
    from scaleproof.simulator.model import Gpt, ResNet
    from scaleproof.validator.calibration.gpu_sizes import GpuSizes

    # imports torch, which only ranks should do
    from scaleproof.validator.probe.gpu import DeviceFacts

# Generations by the major number of NVIDIA's compute capability; 7.5 is Turing, 8.6 RTX Ampere, 8.9 Ada. (CUDA C++
# Programming Guide, appendix.)
_GENERATIONS: Final[dict[int, Generation]] = {
    3: "kepler", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell-rtx",
}  # fmt: skip
_MINOR: Final[dict[tuple[int, ...], Generation]] = {(7, 5): "turing", (8, 6): "ampere-rtx", (8, 9): "ada"}
# AMD's architectures whose kernels are modelled: MI200, MI300 and MI350 series.
_CDNA: Final = ("gfx90a", "gfx94", "gfx95")
# Framework of the ranks, if it supports their strategy.
_FRAMEWORK: Final = "pytorch-ddp"
# Candidates for shares of the peak, from an eighth to all of it.
_SHARES: Final = np.geomspace(0.125, 1.0, 43)
# The same of what the power limit sustains, in steps of half a percent.
_SUSTAINED_SHARES: Final = np.geomspace(0.125, 1.0, 421)
# Fields of kernels without a unit.
_RATIOS: Final = (
    "tile_share", "sustained_share", "memory_share", "flash_forward_share", "flash_backward_share", "flash_ramp_keys",
    "host_slowdown",
)  # fmt: skip
_SIXTEEN_BITS: Final = ("bf16", "fp16")
# Number of shapes from which rates of a kind of kernel are fitted: several per parameter.
_LEAST_SHAPES: Final = 24
_FITTED_FIRST: Final = ("bf16", "fp16", "fp32")
# Peaks in FLOP/s and bytes/s of a device that does not ship and of which nothing is measured.
_UNKNOWN: Final = 1e9


def layers(model: Gpt | ResNet, precision: str, samples: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of the layers of one model; their group is the precision."""
    from scaleproof.validator.probe import compute

    return compute.layers([model], precision, samples, budget_s, precision)


def machine(facts: DeviceFacts, sizes: GpuSizes) -> dict[str, Any]:
    """Description of a machine with GPUs before measuring, as data of a cluster file. Raises InputError without a GPU, unless
    sizes are tiny."""
    if facts["capability"] == [0, 0] and not sizes.label:
        raise InputError("torch finds no GPU; run this on a machine with one, or in tiny sizes as a dry run")
    known, devices = shipped(facts["name"]), sizes.devices or facts["devices"]
    kernels = at_power_limit(known.kernels, known.power_limit_W) if known and known.kernels else _unmeasured(facts)
    link = {"bandwidth": rate_text(nominal_Bps(facts["name"]) or _UNKNOWN), "latency": ASSUMED_LATENCY}
    peaks: dict[Any, float] = known.peak_flops if known else {"fp32": _UNKNOWN}
    return {
        "name": f"{facts['name']}{f': {sizes.label}' if sizes.label else ''}",
        "description": f"{devices} × {facts['name']} of this machine{f'; {sizes.label}' if sizes.label else ''}",
        "nodes": 1,
        "node": {"devices": devices} | ({"link": link} if devices > 1 else {}),
        "device": {
            "name": known.name if known else facts["name"],
            "description": "peaks of the data sheet, the rest measured" if known else "peaks are the best measured rates",
            **_rates(peaks, known.memory_bandwidth_Bps if known else _UNKNOWN),
            "memory": f"{facts['memory_bytes'] / 2**30:.5g} GiB",
            "kernels": _kernel_fields(kernels),
        },
        "framework": _FRAMEWORK,
    }


def device_section(points: Sequence[Point], nominal: Device) -> Section:
    """Section `device` of a GPU. nominal: the device before measuring. Raises RunError if its peak stays unknown."""
    products = [point for point in timed(points, "matmul") if point.group != SUSTAINED]
    is_known = nominal.peak_flops != {"fp32": _UNKNOWN}
    if not products and not is_known:
        raise RunError(f"no matrix product was timed, and no {nominal.name} ships; see why the products failed")
    peak_flops: dict[Any, float] = nominal.peak_flops if is_known else _peaks(products)
    memory_Bps = nominal.memory_bandwidth_Bps if is_known else _reached_Bps(points) or nominal.memory_bandwidth_Bps
    fields: dict[str, Any] = {
        "name": nominal.name,
        "description": nominal.description,
        **_rates(peak_flops, memory_Bps),
        "memory": f"{nominal.memory_bytes / 2**30:.5g} GiB",
    }
    if nominal.kernels is not None:
        kernels = _kernels(nominal.kernels, points, products, peak_flops, memory_Bps)
        update = {"kernels": kernels, "peak_flops": peak_flops, "memory_bandwidth_Bps": memory_Bps}
        fitted = _with_rates(nominal.model_copy(update=update), points)
        fields["kernels"] = _kernel_fields(_sustaining(fitted, points))
    layers, optimizers = (_by_precision(timed(points, probe)) for probe in ("layer", "optimizer"))
    fields["measured_layers"] = [entry for name, mine in layers.items() for entry in measured_layers(mine, name)]
    fields["measured_optimizers"] = [entry for name, mine in optimizers.items() for entry in measured_optimizers(mine, name)]
    return Section(fields)


def fitted_shares(speed: Speed, products: Sequence[Point]) -> tuple[float, float]:
    """(tile_share, sustained_share) with the smallest mean absolute error of logarithms over the measured products."""

    def error(shares: tuple[float, float]) -> float:
        tile_share, sustained_share = shares
        kernels = speed.kernels.model_copy(update={"tile_share": tile_share, "sustained_share": sustained_share})
        return _error(speed._replace(kernels=kernels), products)

    # among equally good pairs take the larger shares, because a bound that nothing reaches has no effect
    pairs = itertools.product(_SHARES.tolist(), _SHARES.tolist())
    return min(pairs, key=lambda shares: (round(error(shares), 4), -sum(shares)))


def _error(speed: Speed, products: Sequence[Point]) -> float:
    """Mean absolute error of the logarithms of predicted times of products."""
    m, n, k, measured_s = np.array([[*(point.numbers[name] for name in "mnk"), point.median_s] for point in products]).T
    moved_bytes = (m * k + k * n) * speed.element_bytes, m * n * speed.element_bytes
    predicted_s = products_s(speed, m, n, k, np.ones_like(m), *moved_bytes)
    return float(np.abs(np.log(predicted_s / measured_s)).mean())


def _rates(peak_flops: dict[Any, float], memory_Bps: float) -> dict[str, Any]:
    return {
        "peak": {str(precision): f"{flops / 1e12:.4g} TFLOP/s" for precision, flops in peak_flops.items()},
        "memory_bandwidth": f"{memory_Bps / 1e9:.4g} GB/s",
    }


def _precision(product: Point) -> str:
    return product.what.removeprefix(SUSTAINED).split()[0]


def _by_precision(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points by their group, which is the precision."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    return groups


def _peaks(products: Sequence[Point]) -> dict[Any, float]:
    """FLOP/s of the best product by precision."""
    peaks: dict[str, float] = {}
    for point in products:
        peaks[_precision(point)] = max(point.size / point.median_s, peaks.get(_precision(point), _UNKNOWN))
    return peaks


def _reached_Bps(points: Sequence[Point]) -> float:
    """Highest rate in bytes/s of copies and additions of the largest sizes, since smaller ones may stay in a cache. Zero
    without measurements."""
    largest: dict[str, Point] = {}
    for point in timed(points, "memory"):
        if point.what in ("copy", "add"):
            largest[point.what] = max(point, largest.get(point.what, point), key=lambda one: one.size)
    return max((point.size / point.median_s for point in largest.values()), default=0.0)


def _kernels(
    nominal: Kernels, points: Sequence[Point], products: Sequence[Point], peak_flops: dict[Any, float], memory_Bps: float
) -> Kernels:
    """The kernels with measured values where there are points. products: those in short bursts."""
    update: dict[str, float] = {}
    if reached_Bps := _reached_Bps(points):
        update["memory_share"] = min(1.0, reached_Bps / memory_Bps)
    launch_s = {point.what: point.median_s for point in timed(points, "launch")}
    if "issue" in launch_s:
        # a CPU has no graphs of kernels
        update |= {"launch_s": launch_s.get("graph", launch_s["issue"]), "issue_s": launch_s["issue"]}
    if "module" in launch_s:
        update["host_slowdown"] = launch_s["module"] / frameworks.shipped(_FRAMEWORK).host.kernel_s
    kernels = nominal.model_copy(update=update)
    timed_in = {_precision(point) for point in products}
    precision = next((p for p in _FITTED_FIRST if p in timed_in and p in peak_flops), None)
    if precision is not None:
        speed = Speed(kernels, peak_flops[precision], memory_Bps, ELEMENT_BYTES[precision])
        tile, at_power_limit = fitted_shares(speed, [point for point in products if _precision(point) == precision])
        kernels = kernels.model_copy(update={"tile_share": tile, "sustained_share": at_power_limit})
    return kernels


def _with_rates(device: Device, points: Sequence[Point]) -> Device:
    """The device with rates of products and of attention that are fitted to those in 16 bits, if there are enough shapes."""
    table = of_rows(rows(points, device.name, ""))
    table = table.subset(table.usable & np.isin(table.precision, _SIXTEEN_BITS))
    for _, _, own in kinds(table.merged()[0]):
        # rates of the forward and of the backward pass are as many as those of products
        if len(own) >= _LEAST_SHAPES and len(forward_only(own)) >= LEAST_ROWS:
            device = fit_device(device, own).device
    return device


def _sustaining(device: Device, points: Sequence[Point]) -> Kernels:
    """The device's kernels with the share of the peak at which a product takes as long in training as it was measured over
    seconds; unchanged if none was."""
    kernels = device.kernels
    assert kernels is not None
    measured = {_precision(point): point for point in timed(points, "matmul") if point.group == SUSTAINED}
    precision = next((p for p in _FITTED_FIRST if p in measured and p in device.peak_flops), None)
    if precision is None:
        return kernels

    def error(share: float) -> float:
        return _error(device.speed(precision, kernels.model_copy(update={"sustained_share": share})), [measured[precision]])

    # as in `fitted_shares`, a bound that the product does not reach has no effect
    share = min(_SUSTAINED_SHARES.tolist(), key=lambda share: (round(error(share), 4), -share))
    return kernels.model_copy(update={"sustained_share": share})


def _kernel_fields(kernels: Kernels) -> dict[str, Any]:
    """The kernels as data of a cluster file."""
    rates = plain_spec(kernels)
    return {
        "generation": kernels.generation,
        "processors": kernels.processors,
        **{name: seconds_text(getattr(kernels, f"{name}_s")) for name in ("burst", "launch", "issue")},
        **{name: round(value, 4) for name in _RATIOS if (value := getattr(kernels, name)) is not None},
        **{name: rates[name] for name in ("products", "attention") if name in rates},
    }


def _unmeasured(facts: DeviceFacts) -> Kernels:
    """Kernels of a device that does not ship, before measuring. Raises InputError for AMD's GPUs that are not modelled."""
    # launch and issue times are those of shipped GPUs
    assumed = {"tile_share": 1.0, "memory_share": 1.0, "launch": "3 us", "issue": "5 us"}
    return Kernels.model_validate({"generation": _generation(facts), "processors": facts["processors"], **assumed})


def _generation(facts: DeviceFacts) -> Generation:
    # AMD's builds of torch give numbers of architectures as those of NVIDIA's capabilities: 9.4 is gfx94
    architecture, capability = facts["architecture"], facts["capability"]
    if architecture and not architecture.startswith(_CDNA):
        raise InputError(
            f"{facts['name']} ({architecture}): of AMD's GPUs only the Instinct MI200, MI300 and MI350 series are modelled; "
            "describe this one by hand in the cluster file (docs/reference/devices.md)"
        )
    if architecture:
        return "cdna"
    return _MINOR.get((capability[0], capability[1])) or _GENERATIONS.get(capability[0], "cpu")
