"""Efficiency of matrix products on a device: parameters fitted on half of the published shapes and tested on the rest.

A GPU of which only the best shape of a search is published takes the curve of the GPU named next to it, scaled by the ratio of
the shares of the peak that their best shapes reach.

Run: python benchmarks/matmul.py
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.kernels.parameters import Generation, Kernels, Speed
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.common import catalog

_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+) b=(\d+) layout=(\w+), accumulate=(\w+), out_dtype=(\w+)")
_FITTED = ("tile_share", "sustained_share", "burst_s")
# What memory-bound kernels reach of the data sheet's bandwidth: a round assumption, since few of the shapes are memory-bound.
_MEMORY_SHARE = 0.85
_LAUNCH_S = 3e-6  # a round assumption; shapes this short are few
_GPUS: dict[str, tuple[Generation, int, float, float]] = {  # generation, processors, peak, memory's bandwidth
    "NVIDIA A100 PCIe": ("ampere", 108, 312e12, 1935e9),
    "NVIDIA B200 SXM": ("blackwell", 148, 2250e12, 7700e9),
}
_LIKE = {
    "NVIDIA A100 SXM": "NVIDIA A100 PCIe", "NVIDIA GH200 SXM": "NVIDIA A100 PCIe", "AMD MI300X": "NVIDIA A100 PCIe",
    "NVIDIA H100 SXM (H200 same)": "NVIDIA A100 PCIe", "NVIDIA GB200 SXM": "NVIDIA B200 SXM",
}  # fmt: skip
# Watts and peaks of GPUs made in the same process as the B200, whose power sustains as much for each watt (NVIDIA's data
# sheets; the last as pytorch/torchtitan's benchmark page says).
_B200_W = 1000
_HOPPERS = {"H100 SXM, H200": (700, 989e12), "H100 limited to 500 W": (500, 989e12)}
# Errors are counted as they are beyond about this, and squared below.
_ROBUST = 0.03


@dataclass(frozen=True)
class Shapes:
    """Products that were measured on one GPU: columns m, n, k, batch, read and written bytes; seconds."""

    columns: NDArray[np.float64]
    measured_s: NDArray[np.float64]

    def errors(self, speed: Speed) -> NDArray[np.float64]:
        """Signed errors relative to the measured times."""
        return products_s(speed, *self.columns) / self.measured_s - 1


def read(gpu: str) -> tuple[Shapes, Shapes]:
    """The shapes to fit and those to test, divided by a hash of the product."""
    halves: tuple[list[list[float]], list[list[float]]] = ([], [])
    with (catalog.ROOT / "published" / "gpu_matmul_efficiency.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            match = _SHAPE.fullmatch(row["best_shape_MxNxK"])
            if row["gpu"] != gpu or match is None:
                continue
            m, n, k, batch = (int(match[i]) for i in range(1, 5))
            number = int(hashlib.sha256(f"{gpu} {m}x{n}x{k} {batch} {match[5]}".encode()).hexdigest(), 16)
            written = m * n * batch * (4 if match[7] == "fp32" else 2)
            read = 2 * (m * k + k * n) * batch + (written if match[6] == "True" else 0)
            seconds = 2 * m * n * k * batch / (float(row["mamf_tflops_measured"]) * 1e12)
            halves[number % 2].append([m, n, k, batch, read, written, seconds])
    fit, rest = (Shapes(table[:-1], table[-1]) for table in (np.array(half).T for half in halves))
    return fit, rest


def best_shares() -> dict[str, float]:
    """Share of the peak that the best shape of a search reaches in bf16, by GPU."""
    with (catalog.ROOT / "published" / "gpu_matmul_efficiency.csv").open(newline="", encoding="utf-8") as file:
        return {row["gpu"]: float(row["efficiency_pct"]) / 100 for row in csv.DictReader(file) if row["dtype"] == "bf16"}


def speed_of(gpu: str, fitted: NDArray[np.float64]) -> Speed:
    """The GPU with `fitted` values of _FITTED."""
    generation, processors, peak_flops, memory_Bps = _GPUS[gpu]
    fields: dict[str, Any] = dict(zip(_FITTED, map(float, fitted), strict=True))
    fields |= {"memory_share": _MEMORY_SHARE, "launch_s": _LAUNCH_S}
    kernels = Kernels.model_construct(generation=generation, processors=processors, **fields)
    return Speed(kernels, peak_flops, memory_Bps, 2)


def search(loss: Callable[[NDArray[np.float64]], float], start: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """A minimum of `loss` over positive values: random steps of factors, shorter as they fail, longer as they succeed."""
    generator = np.random.default_rng(0)
    best, lowest, step = start, loss(start), 0.3
    while step > 1e-4:
        tried = best * np.exp(step * generator.normal(size=len(best)))
        if (value := loss(tried)) < lowest:
            best, lowest, step = tried, value, step * 1.5
        else:
            step *= 0.97
    return best, lowest


def fitted(gpu: str, shapes: Shapes) -> NDArray[np.float64]:
    """The best values of _FITTED over several searches."""

    def loss(values: NDArray[np.float64]) -> float:
        if max(values[:2]) > 1:
            return math.inf
        errors = shapes.errors(speed_of(gpu, values))
        return float(np.mean(np.sqrt(1 + (errors / _ROBUST) ** 2)))

    starts = ((share, power, 1e-4) for share in (0.7, 0.9) for power in (0.5, 0.75))
    return min((search(loss, np.array(start)) for start in starts), key=lambda found: found[1])[0]


def main() -> None:
    """Prints what was fitted, its error on both halves, and the scaled curves."""
    shares, curves = best_shares(), {}
    for gpu in _GPUS:
        fit, rest = read(gpu)
        curves[gpu] = fitted(gpu, fit)
        print(f"{gpu}: {', '.join(f'{name} {value:.3g}' for name, value in zip(_FITTED, curves[gpu], strict=True))}")
        for title, half in (("fitted", fit), ("other", rest)):
            errors = np.abs(half.errors(speed_of(gpu, curves[gpu])))
            print(f"  {title} half: {len(errors)} shapes, error mean {errors.mean():.1%}, median {np.median(errors):.1%}")
    for gpu, like in _LIKE.items():
        tile, sustained, _ = curves[like] * shares[gpu] / shares[like]
        print(f"{gpu}, as {like}: tile_share {tile:.3f}, sustained_share {min(1.0, sustained):.3f}")
    sustained_flops = curves["NVIDIA B200 SXM"][1] * _GPUS["NVIDIA B200 SXM"][2]
    for gpu, (watts, peak_flops) in _HOPPERS.items():
        print(f"{gpu}, by its power: sustained_share {sustained_flops * watts / _B200_W / peak_flops:.3f}")


if __name__ == "__main__":
    main()
