"""Cluster file from probe results: peaks of the data sheet if the device ships, and measured values for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.simulator import frameworks
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Device
from scaleproof.simulator.cluster.device.kernels import Generation, Kernels, Speed, products_s
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.calibration.cluster_file.from_points import provenance
from scaleproof.validator.calibration.cluster_file.section import rate_text, seconds_text
from scaleproof.validator.calibration.fit import curve_fitting
from scaleproof.validator.calibration.fit.curve_fitting.lines import FASTEST_S
from scaleproof.validator.calibration.gpus import shipped

if TYPE_CHECKING:
    # these modules import torch, which only ranks should do
    from scaleproof.validator.probe.gpu import DeviceFacts, Launches, LayerTiming, MatmulTiming, MovedTiming, OptimizerTiming

# Generations by the major number of NVIDIA's compute capability; 7.5 is Turing. (CUDA C++ Programming Guide, appendix.)
_GENERATIONS: Final[dict[int, Generation]] = {
    3: "kepler", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell",
}  # fmt: skip
_TURING: Final = [7, 5]
# Framework of the ranks, if it supports their strategy.
_FRAMEWORK: Final = "pytorch-ddp"
# Candidates for shares of the peak, from an eighth to all of it.
_SHARES: Final = np.geomspace(0.125, 1.0, 43)
# Fields of kernels without a unit.
_RATIOS: Final = (
    "tile_share", "sustained_share", "memory_share", "flash_forward_share", "flash_backward_share", "flash_ramp_keys",
    "host_slowdown",
)  # fmt: skip
_FITTED_FIRST: Final = ("bf16", "fp16", "fp32")


@dataclass
class ProbeResults:
    """Results of probes; empty for probes that were not run. devices: number of GPUs, each of which trains one rank."""

    facts: DeviceFacts
    devices: int
    matmuls: Sequence[MatmulTiming] = ()
    memory: Sequence[MovedTiming] = ()
    launches: Launches | None = None
    layers: dict[str, list[LayerTiming]] = field(default_factory=dict)
    optimizers: dict[str, list[OptimizerTiming]] = field(default_factory=dict)
    messages: Sequence[MovedTiming] = ()
    allreduces: dict[int, Sequence[MovedTiming]] = field(default_factory=dict)


def describe(probed: ProbeResults, label: str) -> dict[str, Any]:
    """Data of the YAML file of a one-node cluster. Raises RunError if the peak of its device is unknown."""
    if not probed.matmuls and shipped(probed.facts["name"]) is None:
        raise RunError(f"no matrix product was timed, and no {probed.facts['name']} ships; see why the products failed")
    node: dict[str, Any] = {"devices": probed.devices}
    if probed.messages:
        node["link"] = _line(probed.messages)
    description = f"{probed.devices} × {probed.facts['name']} of this machine, measured"
    described = {
        "name": f"{probed.facts['name']}{f': {label}' if label else ''}",
        "description": f"{description}; {label}" if label else description,
        "nodes": 1,
        "node": node,
        "device": _device(probed),
        "framework": _FRAMEWORK,
        "provenance": provenance(),
    }
    if probed.allreduces:
        measured = [{"ranks": ranks, **_line(timings)} for ranks, timings in probed.allreduces.items()]
        described["collectives"] = {"measured": measured}
    return described


def fitted_shares(speed: Speed, timings: Sequence[MatmulTiming]) -> tuple[float, float]:
    """(tile_share, sustained_share) with the smallest mean absolute error of logarithms over the measured products."""
    m, n, k = (np.array([t[name] for t in timings], dtype=np.float64) for name in ("m", "n", "k"))
    measured_s = np.array([t["seconds"] for t in timings])
    moved_bytes = (m * k + k * n) * speed.element_bytes, m * n * speed.element_bytes

    def error(shares: tuple[float, float]) -> float:
        tile_share, sustained_share = shares
        kernels = speed.kernels.model_copy(update={"tile_share": tile_share, "sustained_share": sustained_share})
        predicted_s = products_s(speed._replace(kernels=kernels), m, n, k, np.ones_like(m), *moved_bytes)
        return float(np.abs(np.log(predicted_s / measured_s)).mean())

    # among equally good pairs take the larger shares, because a bound that nothing reaches has no effect
    pairs = itertools.product(_SHARES.tolist(), _SHARES.tolist())
    return min(pairs, key=lambda shares: (round(error(shares), 4), -sum(shares)))


def _device(probed: ProbeResults) -> dict[str, Any]:
    known = shipped(probed.facts["name"])
    peak_flops = _peaks(probed, known)
    memory_Bps = _memory_Bps(probed, known)
    described: dict[str, Any] = {
        "name": known.name if known else probed.facts["name"],
        "description": "peaks of the data sheet, the rest measured" if known else "peaks are the best measured rates",
        "peak": {precision: f"{flops / 1e12:.4g} TFLOP/s" for precision, flops in peak_flops.items()},
        "memory": f"{probed.facts['memory_bytes'] / 2**30:.5g} GiB",
        "memory_bandwidth": f"{memory_Bps / 1e9:.4g} GB/s",
    }
    described["kernels"] = _kernels(probed, known, peak_flops, memory_Bps)
    described["measured_layers"] = [
        entry for precision, timings in probed.layers.items() for entry in _layer_entries(timings, precision)
    ]
    described["measured_optimizers"] = [
        entry for precision, timings in probed.optimizers.items() for entry in _optimizer_entries(timings, precision)
    ]
    return described


def _peaks(probed: ProbeResults, known: Device | None) -> dict[str, float]:
    """FLOP/s by precision: the data sheet's, otherwise the best product's, but at least 1 GFLOP/s."""
    if known is not None:
        return {str(precision): flops for precision, flops in known.peak_flops.items()}
    peaks: dict[str, float] = {}
    for t in probed.matmuls:
        flops = 2.0 * t["m"] * t["n"] * t["k"] / t["seconds"]
        peaks[t["precision"]] = max(flops, peaks.get(t["precision"], 1e9))
    return peaks


def _memory_Bps(probed: ProbeResults, known: Device | None) -> float:
    """Memory bandwidth in bytes/s: the data sheet's, otherwise the measured one; 1 GB/s without measurements."""
    return known.memory_bandwidth_Bps if known else _reached_Bps(probed.memory) or 1e9


def _reached_Bps(timings: Sequence[MovedTiming]) -> float:
    """Highest rate in bytes/s among the largest sizes, since smaller ones may stay in a cache. Zero without measurements."""
    most_bytes = {what: max(t["moved_bytes"] for t in timings if t["what"] == what) for what in {t["what"] for t in timings}}
    return max((t["moved_bytes"] / t["seconds"] for t in timings if t["moved_bytes"] == most_bytes[t["what"]]), default=0.0)


def _kernels(probed: ProbeResults, known: Device | None, peak_flops: Mapping[str, float], memory_Bps: float) -> dict[str, Any]:
    """Field `kernels`: measured values where there are probes, otherwise the shipped device's, otherwise defaults."""
    kernels = known.kernels if known and known.kernels else _unmeasured(probed.facts)
    update: dict[str, float] = {}
    if probed.memory:
        update["memory_share"] = min(1.0, _reached_Bps(probed.memory) / memory_Bps)
    if probed.launches:
        update |= {"launch_s": probed.launches["launch_s"], "issue_s": probed.launches["issue_s"]}
        update["host_slowdown"] = probed.launches["module_s"] / frameworks.shipped(_FRAMEWORK).host.kernel_s
    kernels = kernels.model_copy(update=update)
    timed = {t["precision"] for t in probed.matmuls}
    precision = next((p for p in _FITTED_FIRST if p in timed and p in peak_flops), None)
    if precision is not None:
        speed = Speed(kernels, peak_flops[precision], memory_Bps, ELEMENT_BYTES[precision])
        tile, sustained = fitted_shares(speed, [t for t in probed.matmuls if t["precision"] == precision])
        kernels = kernels.model_copy(update={"tile_share": tile, "sustained_share": sustained})
    return {
        "generation": kernels.generation,
        "processors": kernels.processors,
        **{name: seconds_text(getattr(kernels, f"{name}_s")) for name in ("burst", "launch", "issue")},
        **{name: round(value, 4) for name in _RATIOS if (value := getattr(kernels, name)) is not None},
    }


def _unmeasured(facts: DeviceFacts) -> Kernels:
    """Kernels of a device that does not ship, before measuring."""
    capability = facts["capability"]
    generation = "turing" if capability == _TURING else _GENERATIONS.get(capability[0], "cpu")
    # launch and issue times are those of shipped GPUs
    assumed = {"tile_share": 1.0, "memory_share": 1.0, "launch": "3 us", "issue": "5 us"}
    return Kernels.model_validate({"generation": generation, "processors": facts["processors"], **assumed})


def _layer_entries(timings: Sequence[LayerTiming], precision: str) -> list[dict[str, Any]]:
    """Entries of `measured_layers`, one per signature: lines through the times by number of samples."""
    entries = []
    for signature in dict.fromkeys(t["signature"] for t in timings):
        mine = [t for t in timings if t["signature"] == signature]
        samples = [t["samples"] for t in mine]
        forward = _linear(samples, [t["forward_s"] for t in mine], "per_sample")
        backward = _linear(samples, [t["backward_s"] for t in mine], "per_sample")
        entries.append({"signature": signature, "precision": precision, "forward": forward, "backward": backward})
    return entries


def _optimizer_entries(timings: Sequence[OptimizerTiming], precision: str) -> list[dict[str, Any]]:
    entries = []
    for name in dict.fromkeys(t["optimizer"] for t in timings):
        mine = [t for t in timings if t["optimizer"] == name]
        line = _linear([t["parameters"] for t in mine], [t["seconds"] for t in mine], "per_parameter")
        entries.append({"optimizer": name, "precision": precision, **line})
    return entries


def _linear(x: Sequence[float], seconds: Sequence[float], slope_name: str) -> dict[str, str]:
    base, slope = curve_fitting.line(x, seconds)
    return {"base": seconds_text(base), slope_name: seconds_text(slope)}


def _line(timings: Sequence[MovedTiming]) -> dict[str, str]:
    """Bandwidth and latency of the line latency + size / bandwidth through the timings."""
    latency_s, per_byte_s = curve_fitting.line([t["moved_bytes"] for t in timings], [t["seconds"] for t in timings])
    return {"bandwidth": rate_text(1 / max(per_byte_s, FASTEST_S)), "latency": seconds_text(latency_s)}
