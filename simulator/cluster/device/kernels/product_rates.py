"""Rates of matrix products on a device: parameters fitted to measured products, or derived from a data sheet."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field

from scaleproof.simulator.cluster.device.kernels.rates import Rates, slower
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, Seconds

# 5th and 95th percentile of the logarithm of measured over predicted time on GPUs that were left out of the fit in turn
# (`python benchmarks/products.py`).
LOG_ERROR: Final = (-0.15, 0.22)
# Precisions of products that can have rates; fp16 has those of bf16.
ProductPrecision = Literal["fp32", "tf32", "bf16", "fp8", "fp4"]

# Logarithms to base 2 of the rows, columns and inner elements at which a correction is given.
CORRECTION_NODES: Final = (9.0, 11.0, 13.0, 15.0)
NODES: Final = len(CORRECTION_NODES)
_PER_MILLE: Final = 1000
_MOST_CORRECTION: Final = 600
# Most that a correction may fall from one node to the next, per mille. The time of tiles grows by at least 5 % where a
# dimension doubles (see products.py), so that no product gets faster where it gets larger.
MOST_FALL: Final = 100
# Bytes that a cast to 8 bits with a scale of the whole tensor moves for each element: the largest value is found (2 bytes read)
# before the elements are cast (2 read, 1 written).
_CAST_BYTES: Final = 5
# How fast data that exceed the cache lose it: all of it if they are 1.5 times as large.
_CACHE_LOSS: Final = 3


def _checked_correction(text: str) -> str:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows:
        return ""
    example = f"give {NODES**2} lines (rows × columns of products) of {NODES} whole numbers per mille (inner dimensions)"
    if [len(row) for row in rows] != [NODES] * NODES**2:
        raise ValueError(f"correction: not {NODES**2} lines of {NODES} numbers; {example}")
    try:
        nodes = np.array([list(map(int, row)) for row in rows]).reshape(NODES, NODES, NODES)
    except ValueError:
        raise ValueError(f"correction: not all of it are whole numbers; {example}") from None
    if np.abs(nodes).max() > _MOST_CORRECTION:
        raise ValueError(f"correction: a value beyond ±{_MOST_CORRECTION} per mille; fit the other parameters first")
    if min(np.diff(nodes, axis=axis).min() for axis in range(nodes.ndim)) < -MOST_FALL:
        raise ValueError(f"correction: falls by more than {MOST_FALL} per mille between neighbouring values; limit the fall")
    return "\n".join(" ".join(row) for row in rows)


class CastRates(Spec):
    """The kernels that cast an input from 16 to 8 bits, with a scale of the whole tensor.

    Tables of products in 8 bits contain them; predictions of training time casts by the framework's own recipe instead.
    """

    fixed_s: Seconds = Field(alias="fixed", description="fixed time of the kernels")
    memory_share: float = Field(gt=0, le=1, description="share of the memory bandwidth that they reach")
    cached_gain: float = Field(1.0, ge=1, le=20, description="rate of inputs that fit the cache over that rate")
    cache_bytes: Bytes = Field(0.0, alias="cache", description="second-level cache; half of it if it has two partitions")

    def seconds(self, memory_Bps: float, elements: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds to cast `elements` elements."""
        size_bytes = elements * 3  # an element is read in 2 bytes and written in 1
        missed = np.clip(_CACHE_LOSS * (1 - self.cache_bytes / size_bytes), 0, 1)
        slowdown = missed + (1 - missed) / self.cached_gain
        result: NDArray[np.float64] = self.fixed_s + _CAST_BYTES * elements * slowdown / (memory_Bps * self.memory_share)
        return result


class ProductRates(Rates):
    """Rates of matrix products in one precision. Shares are of the device's peak rate or memory bandwidth.

    A product computes in waves of tiles. `simulator.cluster.device.kernels.products` has the formulae.
    """

    tile_share: float = Field(gt=0, le=1, description="share of the peak that the largest tiles reach on all processors")
    edge: float = Field(ge=0, le=1000, description="loss of smaller tiles, in elements times the inverse of their edges")
    ramp: float = Field(ge=0, le=1000, description="time to start and end a wave of tiles, in inner elements")
    memory_share: float = Field(gt=0, le=1, description="share of the memory bandwidth that products reach")
    burst_share: float = Field(gt=0, le=1, description="share of the peak that the power limit leaves to a long burst")
    burst_s: Seconds = Field(0.0, alias="burst", description="duration of a product that may draw twice that power")
    fixed_s: Seconds = Field(alias="fixed", description="fixed time of a product in a burst, where a graph launches kernels")
    cast: CastRates | None = Field(None, description="cast of the input in tables of products in 8 bits")
    correction: Annotated[str, AfterValidator(_checked_correction)] = Field(
        "",
        description="logarithm of measured over modelled time, per mille: a line for each number of rows and of columns, "
        "columns first, a number for each inner dimension, at 512, 2048, 8192 and 32768",
    )

    def slowdown(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> NDArray[np.float64] | float:
        """Factor of the time of tiles and of the power bound that `correction` gives, multilinear between its nodes."""
        if not self.correction:
            return 1.0
        places, weights = node_weights(m, n, k)
        result: NDArray[np.float64] = np.exp((correction_nodes(self.correction)[places] * weights).sum(axis=0))
        return result


@functools.lru_cache(maxsize=64)
def correction_nodes(text: str) -> NDArray[np.float64]:
    """Logarithms of a correction's factors at all nodes: rows × columns × inner dimensions, flat."""
    return np.array(text.split(), dtype=np.float64) / _PER_MILLE


def node_weights(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices and weights of the eight nodes around each product, of shape (8, products); sizes outside of the nodes count as
    the outermost."""
    first, second = CORRECTION_NODES[:2]
    place = np.clip((np.log2(np.stack(np.broadcast_arrays(m, n, k))) - first) / (second - first), 0, NODES - 1)
    below = np.minimum(place.astype(np.int64), NODES - 2)
    above = place - below
    rows, columns, inner = np.stack([1 - above, above], axis=1)
    weights = rows[:, None, None] * columns[:, None] * inner
    strides = np.array([NODES * NODES, NODES, 1])
    corners = np.array(list(itertools.product((0, 1), repeat=3))) @ strides
    return np.add.outer(corners, np.tensordot(strides, below, axes=1)), weights.reshape(len(corners), *place.shape[1:])


# Device files of the measured GPU of each generation; RTX Blackwell's tensor cores are of Ada's kind.
MEASURED_DEVICES: Final = {
    "ampere": "a100-80gb-sxm", "ada": "l40s", "hopper": "h100-80gb-sxm", "blackwell": "b200-180gb-sxm", "blackwell-rtx": "l40s",
}  # fmt: skip


def of_twice_the_bytes(rates: ProductRates) -> ProductRates:
    """Rates of products of elements with twice the bytes at half the peak, as TF32's next to those of 16 bits.

    Tiles and the bytes that they read in a time are the same, so that shares of the peak and of bandwidths are; a wave starts
    and ends in the time of half as many inner elements. The correction was measured of 16 bits alone.
    """
    update = {"ramp": rates.ramp / 2, "correction": "", "log_error": LOG_ERROR, "state": "data sheet"}
    return rates.model_copy(update=update)


@functools.lru_cache(maxsize=256)
def generation_rates(generation: str, precision: str, tile_share: float, slowdown: float = 1.0) -> ProductRates | None:
    """Rates of products of a device without its own: those of its generation's measured GPU, changed as much as `tile_share`
    differs, with fixed times `slowdown` times as long. None if no GPU of the generation was measured in this precision."""
    if generation not in MEASURED_DEVICES:
        return None
    known = _measured_kernels(MEASURED_DEVICES[generation])
    given = known["products"].get(precision)
    if given is None:
        return None
    measured, ratio = slower(ProductRates.model_validate(given), slowdown), tile_share / known["tile_share"]
    share = min(1.0, measured.tile_share * ratio)
    return measured.model_copy(update={"tile_share": share, "log_error": LOG_ERROR, "state": "data sheet"})


@functools.cache
def _measured_kernels(device: str) -> Mapping[str, Any]:
    found = yaml.safe_load((catalog.ROOT / "devices" / f"{device}.yaml").read_text(encoding="utf-8"))
    kernels: Mapping[str, Any] = found["kernels"]
    return kernels
