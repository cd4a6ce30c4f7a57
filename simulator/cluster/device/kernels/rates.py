"""Rates of kernels on a device, fitted to measurements or derived from a data sheet: of matrix products, of implementations of
flash attention, and of fused mixtures of experts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, Seconds

# How a parameter of a device is known.
State = Literal["measured", "data sheet", "assumed"]
_Spec = TypeVar("_Spec", bound=Spec)
# End of the names of fields in seconds.
_SECONDS: Final = "_s"


class Rates(Spec):
    """Rates of one kind of kernel on a device, with the error of predictions by them."""

    log_error: tuple[float, float] = Field(
        (-0.3, 0.3), description="5th and 95th percentile of the logarithm of measured over predicted time"
    )
    state: State = "assumed"
    source: str = ""


def slower(spec: _Spec, slowdown: float) -> _Spec:
    """Parameters whose times in seconds, nested ones included, are `slowdown` times as long.

    Shares stay the same: they are of the device's peaks, which are slowed by themselves.
    """
    values = {name: getattr(spec, name) for name in type(spec).model_fields}
    return spec.model_copy(update={name: _slower_value(name, value, slowdown) for name, value in values.items()})


def _slower_value(name: str, value: Any, slowdown: float) -> Any:
    if isinstance(value, Spec):
        return slower(value, slowdown)
    if isinstance(value, dict):
        return {key: _slower_value("", one, slowdown) for key, one in value.items()}
    return value * slowdown if name.endswith(_SECONDS) and value is not None else value


# 5th and 95th percentile of the logarithm of measured over predicted time on GPUs that were left out of the fit in turn
# (`python benchmarks/products.py`).
PRODUCT_LOG_ERROR: Final = (-0.15, 0.22)
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
    update = {"ramp": rates.ramp / 2, "correction": "", "log_error": PRODUCT_LOG_ERROR, "state": "data sheet"}
    return rates.model_copy(update=update)


@functools.lru_cache(maxsize=256)
def generation_product_rates(generation: str, precision: str, tile_share: float, slowdown: float = 1.0) -> ProductRates | None:
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
    return measured.model_copy(update={"tile_share": share, "log_error": PRODUCT_LOG_ERROR, "state": "data sheet"})


@functools.cache
def _measured_kernels(device: str) -> Mapping[str, Any]:
    found = yaml.safe_load((catalog.ROOT / "devices" / f"{device}.yaml").read_text(encoding="utf-8"))
    kernels: Mapping[str, Any] = found["kernels"]
    return kernels


# Widest head of which a kernel has its usual block of queries.
NARROW_HEAD: Final = 128
# Name of the fastest implementation in the files of frameworks, and the one of a framework that names none: PyTorch's.
BEST_ATTENTION: Final = "best"
USUAL_ATTENTION: Final = "flash-2"


# Parameters of which more is faster, and of which less is.
_FASTER: Final = (
    "product_share", "exponential_share", "sustained_share", "backward_product_share", "backward_exponential_share",
)  # fmt: skip
_SLOWER: Final = ("block_rows", "wide_block_rows", "block_s", "backward_moved")


class Preparation(Spec):
    """A kernel before the forward pass that rotates queries and keys and copies keys and values to a cache."""

    memory_share: float = Field(gt=0, le=4, description="share of the memory bandwidth that it reaches")
    cached_gain: float = Field(1.0, ge=1, le=10, description="rate where all that it moves fits the cache, over that rate")
    cache_bytes: Bytes = Field(0.0, alias="cache", description="second-level cache")


class AttentionRates(Rates):
    """Rates of an implementation of flash attention. Shares of products are of the device's peak rate.

    A block of queries passes over its keys: products and exponentials of a block overlap in part, and processors work on
    blocks in order, one at a time. `simulator.cluster.device.kernels.attention` has the formulae.
    """

    product_share: float = Field(gt=0, le=2, description="share of the peak that the products of a block reach alone")
    exponential_share: float = Field(
        gt=0, le=4, description="share of the special-function units' rate that the softmax of a block reaches alone"
    )
    sustained_share: float = Field(
        1.0, gt=0, le=2, description="share of the peak that power and caches sustain while all processors are busy"
    )
    block_rows: Count = Field(128, description="queries in a block, of heads up to 128 wide")
    wide_block_rows: Count = Field(128, description="queries in a block, of wider heads")
    slowdowns: dict[int, float] = Field(
        {}, description="time of wider heads over that of their products and exponentials, by width; linear between widths"
    )
    block_s: Seconds = Field(0.0, alias="block", description="fixed time of a block: first loads, and writing its output")
    launch_s: Seconds | None = Field(None, alias="launch", description="fixed time of the kernels; the device's if absent")
    backward_product_share: float | None = Field(
        None, gt=0, le=2, description="share of the peak that the backward pass's products reach; five sixths if absent"
    )
    backward_exponential_share: float | None = Field(
        None, gt=0, le=4, description="the same of exponentials and of the elementwise work next to them; a third if absent"
    )
    backward_moved: float = Field(
        10.0, ge=0, le=100, description="elements moved per element of the output by the kernels around the backward pass"
    )
    preparation: Preparation | None = Field(None, description="a kernel before the forward pass, of serving software")
    log_error: tuple[float, float] = (-0.25, 0.25)


@functools.cache
def shipped_attention_rates() -> dict[str, dict[str, AttentionRates]]:
    """Shipped rates by implementation and generation of devices."""
    found: dict[str, Any] = yaml_file.read(catalog.ROOT / "kernels" / "attention.yaml").data
    return {
        name: {generation: AttentionRates.model_validate(rates) for generation, rates in by_generation.items()}
        for name, by_generation in found["implementations"].items()
    }


def generation_attention_rates(implementation: str, generation: str) -> AttentionRates | None:
    """Shipped rates of an implementation on a generation; None if none ships. "best" is no slower than any that trains."""
    if implementation != BEST_ATTENTION:
        return shipped_attention_rates().get(implementation, {}).get(generation)
    return best_attention_rates([rates[generation] for rates in shipped_attention_rates().values() if generation in rates])


def best_attention_rates(known: Sequence[AttentionRates]) -> AttentionRates | None:
    """Rates whose parameters are each the best of implementations that train; None if there are none."""
    known = [rates for rates in known if rates.preparation is None]
    if not known:
        return None
    widths = {width for rates in known for width in rates.slowdowns}
    fastest = {name: max(getattr(rates, name) for rates in known) for name in _FASTER if all(getattr(r, name) for r in known)}
    least = {name: min(getattr(rates, name) for rates in known) for name in _SLOWER}
    slowdowns = {width: min(min(rates.slowdowns.get(width, 1.0) for rates in known), 1.0) for width in widths}
    return known[0].model_copy(update={**fastest, **least, "slowdowns": slowdowns, "launch_s": None, "state": "assumed"})


# Variables of the correction, logarithms to base 2: rows of an expert, experts of the rank, width of the model, width of an
# expert's part, and the load of the rank over an even share. Their middles and half ranges: beyond, a variable counts as its
# end, so that the correction is bounded.
MIXTURE_VARIABLES: Final = ("rows", "experts", "hidden", "inter", "imbalance")
MIXTURE_MIDDLES: Final = (7.5, 4.0, 12.0, 10.5, 1.5)
MIXTURE_HALF_RANGES: Final = (5.5, 5.0, 1.5, 3.5, 1.5)
# Terms: 1, each variable, and each product of two variables.
MIXTURE_TERMS: Final = 1 + len(MIXTURE_VARIABLES) + len(MIXTURE_VARIABLES) * (len(MIXTURE_VARIABLES) + 1) // 2


class MixtureRates(Rates):
    """A fused mixture of experts: routing, permutation, two grouped products with the activation between them, and the sum.

    The grouped products take as long as plain products of their sizes. `mixture.py` has the formulae.
    """

    fixed_s: Seconds = Field(alias="fixed", description="fixed time of routing and of all launches")
    memory_share: float = Field(gt=0, le=4, description="share of the memory bandwidth that the other kernels reach")
    correction: tuple[float, ...] = Field(
        (), max_length=MIXTURE_TERMS, description="coefficients of a polynomial of second order for the logarithm of the time"
    )
    log_error: tuple[float, float] = (-0.5, 0.8)
