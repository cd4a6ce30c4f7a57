"""Rates of matrix products on devices without measurements, from the facts of a data sheet.

The rules hold within 6 to 10 % at the median for each of the four GPUs whose products were measured, if their constants are
fitted to the other three (`fit_constants`):

- Long bursts reach the rate of one clock on all of them, some 1.4 GHz, whatever the highest clock is: a GPU at its power limit
  lowers its clock, and those with a higher one lower it more.
- The share of the peak that tiles reach falls with about the cube root of the highest clock, since caches do not get as much
  faster.
- Products before Hopper, whose tensor cores read operands from registers, lose more in smaller tiles.
- Kernels reach less of a bandwidth that is high relative to the number of processors and their clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.products import PRODUCT_LOG_ERROR, CastRates, ProductRates
from scaleproof.validator.estimation.posterior import soft_l1, weighted
from scaleproof.validator.kernels.parameters import Parameter, fit_parameters
from scaleproof.validator.kernels.products import ASYNCHRONOUS, ProductShapes, predicted_s, resident_bytes, with_rates
from scaleproof.validator.kernels.shapes import Floats

# Middles of the constants and standard deviations of their logarithms before the fit: round values. Four GPUs do not determine
# by which exponent shares fall with the clock, so that its deviation is small.
_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "tile_share": Parameter(1, 0.3),
    "clock_loss": Parameter(0.35, 0.1),
    "synchronous_edge": Parameter(20, 0.7),
    "edge": Parameter(5, 0.7),
    "synchronous_ramp": Parameter(200, 0.7),
    "ramp": Parameter(100, 0.7),
    "bytes_per_cycle": Parameter(25, 0.7),
    "burst_GHz": Parameter(1.4, 0.2),
    "burst_s": Parameter(2e-4, 1),
    "fixed_s": Parameter(2e-6, 0.3),
    "narrow_tile_share": Parameter(0.95, 0.1),
    "narrow_burst_share": Parameter(0.95, 0.1),
    "cast_s": Parameter(10e-6, 0.3),
    "cast_bytes_per_cycle": Parameter(14, 0.5),
}
# Errors of the logarithm count as they are beyond about this, and squared below.
_ROBUST: Final = 0.08
# Each table counts as much as this number of products with independent errors.
_INDEPENDENT: Final = 60
_GHZ: Final = 1e9
# Shares stay below this one, smoothly.
_MOST_SHARE: Final = 0.97
_SHARPNESS: Final = 12
_CAST: Final = ("fp8",)
_NARROW: Final = ("fp8", "fp4")


@dataclass(frozen=True)
class DataSheet:
    """Facts of a device that vendors publish. peak_flops: dense FLOP/s in 16 bits. clock_Hz: the highest clock."""

    generation: str
    processors: int
    clock_Hz: float
    peak_flops: float
    memory_Bps: float
    l2_bytes: float

    @classmethod
    def of(cls, device: Device) -> DataSheet:
        """The facts of a device that states its cache and its clock. Raises ValueError if it lacks one."""
        kernels, peak_flops = device.kernels, device.peak_flops.get("bf16") or device.peak_flops.get("fp16")
        if kernels is None or device.clock_Hz is None or device.l2_bytes is None or peak_flops is None:
            raise ValueError(f"{device.name}: rates of products need kernels, clock, l2 and a peak in 16 bits; add them")
        memory_Bps = device.memory_bandwidth_Bps
        return cls(kernels.generation, kernels.processors, device.clock_Hz, peak_flops, memory_Bps, device.l2_bytes)

    @property
    def peak_clock_GHz(self) -> float:
        """The clock at which the device has its stated peak: processors compute a power of two of FLOPs in a cycle."""
        per_cycle = 2.0 ** round(math.log2(self.peak_flops / (self.processors * self.clock_Hz)))
        return float(self.peak_flops / (self.processors * per_cycle * _GHZ))


class Constants(NamedTuple):
    """Constants of the rules. For edge and ramp, see `ProductRates`; those in synchronous_ hold before Hopper.

    tile_share: at 1 GHz. clock_loss: exponent by which it falls with the clock. bytes_per_cycle: bandwidth of a processor at
    which kernels reach half of the memory bandwidth. burst_GHz: clock of long bursts. narrow_tile_share, narrow_burst_share:
    factors of 8-bit products. cast_bytes_per_cycle: of each processor, for an input in the cache.
    """

    tile_share: float
    clock_loss: float
    synchronous_edge: float
    edge: float
    synchronous_ramp: float
    ramp: float
    bytes_per_cycle: float
    burst_GHz: float
    burst_s: float
    fixed_s: float
    narrow_tile_share: float
    narrow_burst_share: float
    cast_s: float
    cast_bytes_per_cycle: float


# Fitted to the products of all four GPUs in scenarios/published/gpu_kernels.csv.gz by `python benchmarks/products.py`.
CONSTANTS: Final = Constants(
    tile_share=1.1,
    clock_loss=0.393,
    synchronous_edge=21.6,
    edge=7.93,
    synchronous_ramp=192,
    ramp=162,
    bytes_per_cycle=29.3,
    burst_GHz=1.43,
    burst_s=135e-6,
    fixed_s=2.39e-6,
    narrow_tile_share=0.871,
    narrow_burst_share=0.92,
    cast_s=10.9e-6,
    cast_bytes_per_cycle=14.3,
)


def product_rates(facts: DataSheet, precision: str = "bf16", constants: Constants = CONSTANTS) -> ProductRates:
    """Rates of matrix products in a precision that follow from a data sheet."""
    clock_GHz, narrow = facts.peak_clock_GHz, precision in _NARROW
    synchronous = facts.generation not in ASYNCHRONOUS
    per_cycle = facts.memory_Bps / (facts.processors * clock_GHz * _GHZ)
    memory_share = 1 / (1 + per_cycle / constants.bytes_per_cycle)
    tile_share = constants.tile_share / clock_GHz**constants.clock_loss * (constants.narrow_tile_share if narrow else 1)
    burst_share = constants.burst_GHz / clock_GHz * (constants.narrow_burst_share if narrow else 1)
    gain = constants.cast_bytes_per_cycle / (per_cycle * memory_share)
    cast = CastRates.model_construct(
        fixed_s=constants.cast_s,
        memory_share=memory_share,
        cached_gain=max(1.0, gain),
        cache_bytes=resident_bytes(facts.generation, facts.l2_bytes),
    )
    return ProductRates.model_construct(
        tile_share=_below_one(tile_share),
        edge=constants.synchronous_edge if synchronous else constants.edge,
        ramp=constants.synchronous_ramp if synchronous else constants.ramp,
        memory_share=memory_share,
        burst_share=_below_one(burst_share),
        burst_s=constants.burst_s,
        fixed_s=constants.fixed_s,
        cast=cast if precision in _CAST else None,
        log_error=PRODUCT_LOG_ERROR,
        state="data sheet",
        source="validator/kernels/data_sheet.py",
    )


def _below_one(share: float) -> float:
    """A share, limited smoothly."""
    return float((share**-_SHARPNESS + _MOST_SHARE**-_SHARPNESS) ** (-1 / _SHARPNESS))


class MeasuredProducts(NamedTuple):
    """Products that were measured on a GPU with a known data sheet."""

    facts: DataSheet
    device: Device
    precision: Precision
    shapes: ProductShapes

    def errors(self, constants: Constants) -> Floats:
        """Logarithms of measured over predicted times."""
        device = with_rates(self.device, self.precision, product_rates(self.facts, self.precision, constants))
        result: Floats = np.log(self.shapes.measured_s / predicted_s(device, self.precision, self.shapes))
        return result


def fit_constants(tables: Sequence[MeasuredProducts]) -> Constants:
    """The constants of the rules that fit measured products best."""

    def errors(values: dict[str, float]) -> Floats:
        return np.concatenate([table.errors(Constants(**values)) for table in tables]) / _ROBUST

    weights = [np.full(len(table.shapes.m), _INDEPENDENT / len(table.shapes.m)) for table in tables]
    found = fit_parameters(_PARAMETERS, errors, weighted(soft_l1, np.concatenate(weights)))
    return Constants(**{name: float(f"{value:.3g}") for name, value in found.items()})
