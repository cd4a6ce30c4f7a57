"""Detection of times in a wrong unit, by the rates that they imply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.attention import BACKWARD_PRODUCTS
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_count
from scaleproof.validator.kernels.devices import precision_of
from scaleproof.validator.kernels.shapes import Floats
from scaleproof.validator.kernels.table import ATTENTION, BACKWARD, MIXTURE, PRODUCT, KernelTable

# A kernel may exceed the peak of the data sheet by this factor, since short ones run at higher clocks.
_ABOVE_PEAK: Final = 1.1
# How many tokens of a mixture a rank has depends on the routing: its FLOPs are known to about this factor.
_MIXTURE: Final = 2.0
# A table all of whose kernels are slower than the device by this factor is in a smaller unit; units differ by 1,000.
_TOO_SLOW: Final = 300.0
# Shortest time of any kernel on a GPU, in seconds.
_SHORTEST_S: Final = 1e-6
_UNITS: Final = "times must be in microseconds: multiply those in milliseconds by 1,000 and those in seconds by 1,000,000"
_SMALLER: Final = "times must be in microseconds: divide those in nanoseconds by 1,000"


def flops(table: KernelTable) -> Floats:
    """FLOPs of each kernel: causal attention counts half of the scores, which its backward pass computes again; a mixture three
    matrices for each expert."""
    size, passes = table.sizes, np.where(table.direction == BACKWARD, BACKWARD_PRODUCTS, 1.0)
    by_kind = {
        PRODUCT: 2 * size["m"] * size["n"] * size["k"],
        ATTENTION: 2 * size["batch"] * size["heads"] * size["seq"] ** 2 * size["head_dim"] * passes,
        MIXTURE: 6 * size["tokens"] * size["topk"] * size["hidden"] * size["inter"] / (size["moe_tp"] * size["moe_ep"]),
    }
    result = np.full(len(table), np.nan)
    for kind, count in by_kind.items():
        result = np.where(table.kind == kind, count, result)
    return result


def check_units(table: KernelTable, devices: Mapping[str, Device]) -> None:
    """Raises InputError, with file and line, if the times of a GPU's kernels of one kind and precision are in a wrong unit.

    That is so if most of them exceed the peak, or if all of them are far slower than the device. devices: by the table's GPUs;
    those without one are not checked.
    """
    for rows, device, peak in _sets(table, devices):
        factors = _times_of_peak(rows, peak)
        if np.median(factors) > _ABOVE_PEAK:
            at = int(np.argmax(factors))
            _refuse(rows, at, factors[at] * peak, peak, device, _UNITS)
        slowest = rows.measured_s / np.maximum(flops(rows) / peak, _SHORTEST_S)
        if slowest.min() > _TOO_SLOW:
            at = int(np.argmin(slowest))
            _refuse(rows, at, factors[at] * peak, peak, device, _SMALLER)


def check_rates(table: KernelTable, devices: Mapping[str, Device]) -> None:
    """Raises InputError, with file and line, as `check_units` does, and if a single kernel exceeds the peak."""
    check_units(table, devices)
    for rows, device, peak in _sets(table, devices):
        factors = _times_of_peak(rows, peak)
        if factors.max() > _ABOVE_PEAK:
            at = int(np.argmax(factors))
            _refuse(rows, at, factors[at] * peak, peak, device, "correct the time or the shape, or remove the row")


def _sets(table: KernelTable, devices: Mapping[str, Device]) -> Iterator[tuple[KernelTable, Device, float]]:
    """Usable rows of each GPU, kind and precision with the device and its peak in FLOP/s, where these are known."""
    for gpu, device in devices.items():
        of_gpu = table.of_gpu(gpu)
        for kind in (PRODUCT, ATTENTION, MIXTURE):
            for precision in of_gpu.precisions(kind):
                if known := precision_of(device, precision):
                    yield of_gpu.subset(of_gpu.rows(kind, precision)), device, device.peak_flops[known]


def _times_of_peak(rows: KernelTable, peak: float) -> Floats:
    """Rate of each kernel over the peak; at least that, for mixtures."""
    least = np.where(rows.kind == MIXTURE, 1 / _MIXTURE, 1.0)
    result: Floats = flops(rows) * least / rows.measured_s / peak
    return result


def _refuse(rows: KernelTable, at: int, rate: float, peak: float, device: Device, remedy: str) -> None:
    shape, time_us = rows.shape_texts()[at], rows.measured_s[at] * 1e6
    raise InputError(
        f"{rows.path}:{rows.lines[at]}: {rows.kind[at]} {shape} in {time_us:.4g} us is {format_count(rate)}FLOP/s, "
        f"but the peak of {device.name} is {format_count(peak)}FLOP/s; {remedy}"
    )
