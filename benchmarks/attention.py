"""Rates of causal flash attention on GPUs, fitted to published kernel times: the source of `ramp_keys` in
scenarios/kernels/attention.yaml.

A forward pass over n tokens reaches T / (1 + 2 · ramp / n): each block of queries takes the time of `ramp` keys in addition to
those that it attends to, n / 2 in the mean. T, the rate of long sequences, and ramp minimise squared errors of logarithms, of
which large ones count less (soft L1). Rows are those of scenarios/published/gpu_kernels.csv of width 128 with at least four
waves of blocks, so that the processors are busy.

Run: python benchmarks/attention.py
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device

Values = NDArray[np.float64]

# GPUs of the table by the device that ships, one of each generation that has a ramp.
_DEVICES: Final = {
    "A100-80GB-SXM": "a100-80gb-sxm", "H100-80GB-SXM": "h100-80gb-sxm", "B200-SXM": "b200-180gb-sxm",
}  # fmt: skip
_WIDTH: Final = 128
# Queries of a block, as `simulator.cluster.device.kernels` has them, and waves of blocks below which processors idle.
_BLOCK: Final = 128
_LEAST_WAVES: Final = 4
# Relative error beyond which errors count less.
_ROBUST: Final = 0.05


class Timing(NamedTuple):
    """A forward pass: tokens of a sequence, and FLOP/s that it reached, counting what the mask leaves."""

    tokens: int
    rate_flops: float


def timings(gpu: str, processors: int) -> list[Timing]:
    """Measured passes of a GPU that occupy all its processors."""
    path = catalog.ROOT / "published" / "gpu_kernels.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "attention_forward" and row["gpu"] == gpu]
    found = []
    for row in rows:
        tokens, sequences = int(row["seq"]), int(row["batch"]) * int(row["heads"])
        is_busy = math.ceil(tokens / _BLOCK) * sequences >= _LEAST_WAVES * processors
        if is_busy and int(row["head_dim"]) == _WIDTH and row["precision"] == "bf16":
            # two products of 2 · n² · width each, of which the mask leaves half
            flops = 2.0 * tokens**2 * _WIDTH * sequences
            found.append(Timing(tokens, flops / (float(row["latency_us"]) * 1e-6)))
    return found


def fitted(found: Sequence[Timing]) -> tuple[float, float, float]:
    """FLOP/s of long sequences, keys of the ramp, and the median relative error."""
    tokens, rates_flops = (np.array(column, dtype=np.float64) for column in zip(*found, strict=True))

    def errors(logs: Values) -> Values:
        rate_flops, ramp = np.exp(logs)
        result: Values = np.log(rate_flops / (1 + 2 * ramp / tokens)) - np.log(rates_flops)
        return result

    start = np.log([rates_flops.max(), tokens.mean() / 10])
    logs = least_squares(errors, start, loss="soft_l1", f_scale=_ROBUST).x
    rate_flops, ramp = np.exp(logs)
    return float(rate_flops), float(ramp), float(np.median(np.abs(np.expm1(errors(logs)))))


def main() -> None:
    """Prints what was fitted for each GPU."""
    for gpu, name in _DEVICES.items():
        device = load_device(catalog.find_part("device", name, catalog.ROOT))
        assert device.kernels is not None
        found = timings(gpu, device.kernels.processors)
        rate_flops, ramp, error = fitted(found)
        share = rate_flops / device.peak_flops["bf16"]
        print(
            f"{gpu}: {len(found)} passes, {rate_flops / 1e12:.0f} TFLOP/s of long sequences ({share:.0%} of the peak), "
            f"ramp of {ramp:.0f} keys, median error {error:.1%}"
        )


if __name__ == "__main__":
    main()
