"""Seconds of matrix products, by tiles and waves.

A product computes in tiles, one per processor at a time, so that the last wave may be nearly empty (NVIDIA's "Matrix
Multiplication Background User's Guide" describes both effects). Moving bytes overlaps computing, as measured products of four
generations show: a tile is written while others compute. The device's power bounds the rate; a short product may exceed it.

A device with rates of products (`ProductRates`) has more terms, which measured products show: a wave takes additional time to
start and end; a wave that leaves processors idle is faster, by the eighth root of the share that is busy; and, in bursts, a
correction that is smooth in the three dimensions. No product gets faster where a dimension doubles. Training is slower than
bursts: the shares that the device sustains bound those of tiles and power.

Products in 8 and 4 bits have a recipe of scaling, which says how many bytes elements have and casts move.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field

from scaleproof.simulator.cluster.device.kernels.rates import Rates
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.spec import Spec, slower
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.model.operators import Product

if TYPE_CHECKING:
    from scaleproof.simulator.cluster.device.kernels.parameters import Generation, Speed

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
# dimension doubles (see above), so that no product gets faster where it gets larger.
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

    A product computes in waves of tiles.
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


# Device files of the measured GPU of each generation; the tensor cores of RTX Ampere and RTX Blackwell are of Ada's kind.
MEASURED_DEVICES: Final = {
    "ampere": "a100-80gb-sxm", "ampere-rtx": "l40s", "ada": "l40s", "hopper": "h100-80gb-sxm", "blackwell": "b200-180gb-sxm",
    "blackwell-rtx": "l40s",
}  # fmt: skip


def of_twice_the_bytes(rates: ProductRates) -> ProductRates:
    """Rates of products of elements with twice the bytes at half the peak, as TF32's next to those of 16 bits.

    Tiles and the bytes that they read in a time are the same, so that shares of the peak and of bandwidths are; a wave starts
    and ends in the time of half as many inner elements. The correction was measured of 16 bits alone.
    """
    update = {"ramp": rates.ramp / 2, "correction": "", "log_error": PRODUCT_LOG_ERROR, "state": "data sheet"}
    return rates.model_copy(update=update)


@functools.lru_cache(maxsize=256)
def generation_product_rates(
    generation: str, precision: str, tile_share: float, sustained_share: float, tensor_rate: float = 1.0, slowdown: float = 1.0
) -> ProductRates | None:
    """Rates of products of a device without its own: those of its generation's measured GPU, changed as much as `tile_share`
    differs, with fixed times `slowdown` times as long. None if no GPU of the generation was measured in this precision.

    A device that sustains more of its peak does so in bursts too. On slower tensor cores a wave starts and ends in the time of
    fewer inner elements."""
    if generation not in MEASURED_DEVICES:
        return None
    known = _measured_kernels(MEASURED_DEVICES[generation])
    given = known["products"].get(precision)
    if given is None:
        return None
    measured, ratio = slower(ProductRates.model_validate(given), slowdown), tile_share / known["tile_share"]
    update = {
        "tile_share": min(1.0, measured.tile_share * ratio), "ramp": measured.ramp * tensor_rate,
        "burst_share": measured.burst_share * sustained_gain(generation, sustained_share),
    }  # fmt: skip
    return measured.model_copy(update={**update, "log_error": PRODUCT_LOG_ERROR, "state": "data sheet"})


def sustained_gain(generation: str, sustained_share: float) -> float:
    """How many times as much of its peak a device sustains as its generation's measured GPU; at least 1."""
    if generation not in MEASURED_DEVICES:
        return 1.0
    known: float = _measured_kernels(MEASURED_DEVICES[generation])["sustained_share"]
    return max(1.0, sustained_share / known)


@functools.cache
def _measured_kernels(device: str) -> Mapping[str, Any]:
    found = yaml.safe_load((catalog.ROOT / "devices" / f"{device}.yaml").read_text(encoding="utf-8"))
    kernels: Mapping[str, Any] = found["kernels"]
    return kernels


Fp8Recipe = Literal["delayed", "current", "rowwise", "blockwise", "mxfp8"]
Fp4Recipe = Literal["nvfp4", "mxfp4"]
Recipe = Fp8Recipe | Fp4Recipe
# Generations whose tensor cores take NVFP4.
_NVFP4: Final = ("blackwell", "blackwell-rtx")


class NarrowProducts(NamedTuple):
    """peak_share: share of the ratio of peaks that products reach over those in 16 bits. By recipe, element_bytes: bytes of an
    element with its share of scales; cast_bytes: bytes moved per element that is cast."""

    peak_share: float
    element_bytes: dict[str, float]
    cast_bytes: dict[str, float]


def has_nvfp4(generation: str) -> bool:
    """Whether products of a generation take NVFP4, NVIDIA's own format of 4 bits."""
    return generation in _NVFP4


def has_scaled_blocks(generation: str, precisions: Collection[str]) -> bool:
    """Whether a device's products take a scale for each block of 32 values (MX formats), as all do that have 4 bits."""
    return has_nvfp4(generation) or "fp4" in precisions


@functools.cache
def narrow_products() -> NarrowProducts:
    """The numbers of scenarios/kernels/fp8.yaml."""
    found = yaml_file.shipped(catalog.ROOT / "kernels" / "fp8.yaml")
    return NarrowProducts(found["peak_share"], found["element_bytes"], found["cast_bytes"])


_SMALL: Final = ((64, 64), (128, 64), (64, 128))
_USUAL: Final = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), *_SMALL)
_WIDE: Final = ((256, 256), (256, 192), (192, 256), (128, 192), (192, 128), *_USUAL)
# Rows and columns of the tiles of a generation's libraries, the largest first (from the names of cuBLAS kernels in profiles;
# a TPU's and a NeuronCore's systolic arrays have 128 × 128, arXiv 2304.01433 and AWS's documentation of Neuron; Gaudi's matrix
# engines 256 × 256, Intel's white paper on Gaudi 3; the registers of a CPU core fit some 6 × 16).
TILES: Final[dict[Generation, tuple[tuple[int, int], ...]]] = {
    "kepler": ((128, 128), *_SMALL), "pascal": ((128, 128), *_SMALL), "volta": _USUAL, "turing": _USUAL, "ampere": _USUAL,
    "ampere-rtx": _USUAL, "ada": _USUAL, "hopper": _USUAL, "blackwell": _WIDE, "blackwell-rtx": _USUAL, "cdna": _WIDE,
    "tpu": ((128, 128),), "gaudi": ((256, 256), (128, 256)), "trainium": ((128, 128),), "apple": _SMALL,
    "cpu": ((12, 32), (6, 16)),
}  # fmt: skip
# Numbers of parts into which the inner dimension is split if there are too few tiles for all processors (split-K). Measured
# products of an A100 show splits by 3 and 6 as well. Gradients of a convolution's weights have few tiles and an inner dimension
# of all positions, which libraries split until the processors are busy (NVIDIA/cutlass, discussion 396, on their tuning).
_SPLITS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_RATED_SPLITS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128)
# Inner elements of one iteration of a tile's main loop; an iteration over fewer elements takes as long. Without tensor cores it
# is 8 (NVIDIA/cutlass, default configurations of SIMT kernels).
_LOOP_STEP: Final = 64
_SIMT_STEP: Final = 8
# Narrower tiles of libraries' products in 32 bits without tensor cores, by kernels in profiles of GPUs from Maxwell on:
# volta_sgemm_32x128, volta_scudnn_128x32.
_SIMT_TILES: Final = ((128, 32), (32, 128))
_WITHOUT_SIMT: Final = ("cdna", "tpu", "gaudi", "trainium", "apple", "cpu")
# Order of the norm that combines the bounds of tiles and of power into a smooth maximum. Chosen, like the choice of what
# overlaps, for all shapes of benchmarks/matmul.py.
_SHARPNESS: Final = 6
# Expected numbers of rows are rounded to multiples of 8 from this number on.
_LEAST_ALIGNED: Final = 16
# Loss of smaller tiles, in elements times the inverse of their edges. Rounded from fits to the shapes of benchmarks/matmul.py.
_TILE_EDGE: Final = 64
# Tensor cores read 16 bytes at a time; NVIDIA's guide shows that products get slower in steps if rows start at multiples of 8,
# 4 or 2 bytes. The cost of a step is a round assumption. Asynchronous copies have at least 4 bytes (CUDA's programming guide),
# so that rows of an odd length use kernels without them (pytorch/pytorch, issue 146817): a GPT-2 of 124 million parameters
# trains a fourth faster with 50304 words than with 50257 (nanoGPT), which makes such a product 2 to 2.5 times slower. Rows
# of TF32 have multiples of 4 bytes.
_ALIGNED_BYTES: Final = 16
_MISALIGNED_STEP: Final = 0.25
_ODD_STEP: Final = 1.0
_ODD_BYTES: Final = 2


def products_s(
    speed: Speed, m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike, read_bytes: ArrayLike, written_bytes: ArrayLike,
    begins: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds of matrix products, each `batch` of m × k by k × n; the arguments and the result have the same shape.

    read_bytes: both factors, and the buffer that the result is added to, if any. written_bytes: the result. begins: for grouped
    products with parts of different sizes, the index of each product's first part in m, n, k and batch, shape (products,).
    """
    m, n, k, batch = (np.maximum(1.0, value) for value in (m, n, k, batch))  # part of a sample may round to zero rows
    kernels, rates, form = speed.kernels, speed.products, _form(speed)
    padding_s: NDArray[np.float64] | float = 0.0
    if speed.pads and speed.on_tensor_cores:
        padding_s = _sums(_padded(m, n, k, speed) * batch, begins) * (2 * speed.element_bytes / speed.reached_Bps)
        n, k = (_aligned(value, speed) for value in (n, k))
    flops = _sums(2 * m * n * k * batch, begins)
    slowdown = _misalignment(speed, n, k)
    slowdown = slowdown if begins is None else np.maximum.reduceat(slowdown, begins)
    power_s = flops / (speed.peak_flops * form.power_share)
    power_s = power_s * power_s / (power_s + form.burst_s)
    if rates is not None and speed.burst:
        rows, outputs = _sums(m * batch, begins), _sums(m * n * batch, begins)
        correction = rates.slowdown(rows, outputs / rows, flops / (2 * outputs))
        slowdown, power_s = slowdown * correction, power_s * correction
    tiles_s = _tiles_s(speed, form, m, n, k, batch, begins) * slowdown
    read_s, written_s = np.asarray(read_bytes) / form.reached_Bps, np.asarray(written_bytes) / form.reached_Bps
    busy_s = (tiles_s**_SHARPNESS + power_s**_SHARPNESS + (read_s + written_s) ** _SHARPNESS) ** (1 / _SHARPNESS)
    busy_s = np.maximum(busy_s, flops / speed.peak_flops)
    result: NDArray[np.float64] = busy_s + (rates.fixed_s if rates is not None and speed.burst else kernels.launch_s)
    return result + padding_s


def _aligned(size: NDArray[np.float64], speed: Speed) -> NDArray[np.float64]:
    """The next size whose rows are aligned."""
    multiple = _ALIGNED_BYTES // speed.element_bytes
    result: NDArray[np.float64] = np.ceil(size / multiple) * multiple
    return result


def _padded(m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64], speed: Speed) -> NDArray[np.float64]:
    """Elements of the factors that are copied, since their rows are not aligned."""
    columns, inner = (_aligned(value, speed) != value for value in (n, k))
    result: NDArray[np.float64] = inner * m * k + (inner | columns) * k * n
    return result


class _Form(NamedTuple):
    """Parameters of the formulae: a device's rates, or what its other parameters stand for. power_share, burst_s: of the power
    bound. exact: whether waves are whole; else one that some processors are idle in is faster."""

    tile_share: float
    edge: float
    ramp: float
    reached_Bps: float
    power_share: float
    burst_s: float
    splits: tuple[int, ...]
    exact: bool


def _form(speed: Speed) -> _Form:
    kernels, rates = speed.kernels, speed.products
    if rates is None:
        share, burst_s = kernels.sustained_share, kernels.burst_s
        return _Form(kernels.tile_share, _TILE_EDGE, 0.0, speed.reached_Bps, share, burst_s, _SPLITS, exact=True)
    tile_share, power_share, burst_s = rates.tile_share, rates.burst_share, rates.burst_s
    if not speed.burst:  # training sustains at most what a burst reaches
        tile_share, power_share = min(kernels.tile_share, tile_share), min(kernels.sustained_share, power_share)
        burst_s = kernels.burst_s
    reached_Bps = speed.memory_Bps * rates.memory_share
    return _Form(tile_share, rates.edge, rates.ramp, reached_Bps, power_share, burst_s, _RATED_SPLITS, exact=False)


def _tiles_s(
    speed: Speed, form: _Form, m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64],
    batch: NDArray[np.float64], begins: NDArray[np.int64] | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds of all waves of tiles, with the fastest choice of tile and split. The parts of a grouped product share the waves;
    tiles of parts with a longer inner dimension have more loop iterations."""
    kernels = speed.kernels
    simt = not speed.on_tensor_cores and kernels.generation not in _WITHOUT_SIMT
    rows, columns, splits = _choices(kernels.generation, form.splits, simt)
    step = _SIMT_STEP if simt else _LOOP_STEP
    m, n, k, batch = (value[..., None] for value in (m, n, k, batch))
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * splits
    iterations = np.ceil(k / splits / step)
    if begins is not None:
        iterations = _sums(tiles * iterations, begins) / _sums(tiles, begins)
        tiles = _sums(tiles, begins)
    waves = np.ceil(tiles / kernels.processors)
    if not form.exact:
        waves *= np.sqrt(np.sqrt(np.sqrt(tiles / kernels.processors / waves)))
    tile_flops = 2 * rows * columns * (step * iterations + form.ramp)
    edges = 1 / rows + 1 / columns
    slowdown = 1 + form.edge * (edges - edges[0])
    waves_s = waves * tile_flops * slowdown * kernels.processors / (speed.peak_flops * form.tile_share)
    # the partial sums of a split are added up in 32 bits
    split_bytes = np.where(splits > 1, _sums(2 * 4 * splits * m * n * batch, begins), 0.0)
    fastest_s: NDArray[np.float64] = (waves_s + split_bytes / form.reached_Bps).min(axis=-1)
    return fastest_s


def _sums(values: NDArray[np.float64], begins: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Sums over the parts of each product; the values themselves if products have no parts."""
    return values if begins is None else np.add.reduceat(values, begins)


@functools.cache
def _choices(
    generation: Generation, splits: tuple[int, ...], simt: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, columns and splits of all kernels that a library chooses from; arrays of shape (choices,). simt: whether threads of
    a GPU compute products without tensor cores."""
    tiles = (*TILES[generation], *(_SIMT_TILES if simt else ()))
    rows, columns, parts = np.array([(*tile, split) for tile in tiles for split in splits], dtype=np.float64).T
    return rows, columns, parts


def _misalignment(speed: Speed, n: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slowdown factor of products whose rows are not aligned to the reads of tensor cores."""
    if not speed.on_tensor_cores:
        return np.ones_like(n)
    aligned = np.minimum(*(np.gcd(speed.element_bytes * value.astype(np.int64), _ALIGNED_BYTES) for value in (n, k)))
    steps = np.log2(_ALIGNED_BYTES / aligned)
    odd = aligned == _ODD_BYTES
    slowdown: NDArray[np.float64] = 1 + _MISALIGNED_STEP * steps + (_ODD_STEP - _MISALIGNED_STEP) * odd
    return slowdown


class BatchedProduct(NamedTuple):
    """A product that is timed in one batch with others. read, written: elements. loads: as in `Matmul`. inner: whether loads
    scale the inner dimension instead of the rows."""

    product: Product
    read: float
    written: float
    loads: tuple[float, ...] = ()
    inner: bool = False

    @property
    def parts(self) -> list[Product]:
        """The products of different sizes in a grouped product, or the product itself."""
        m, n, k, _ = self.product
        if not self.loads:
            return [self.product]
        if self.inner:
            return [Product(m, n, _rounded(k * load), 1) for load in self.loads]
        return [Product(_rounded(m * load), n, k, 1) for load in self.loads]

    @classmethod
    def from_product(cls, product: Product, loads: tuple[float, ...] = (), inner: bool = False) -> BatchedProduct:
        """A product that reads both factors once and writes the result once."""
        m, n, k, batch = product
        return cls(product, batch * (m * k + k * n), batch * m * n, loads, inner)


def _rounded(rows: float) -> int:
    """An expected number of rows as an integer; large ones are aligned, since expected values have no meaningful alignment."""
    return 8 * round(rows / 8) if rows >= _LEAST_ALIGNED else max(1, round(rows))


# Seconds of a kernel, or a product whose seconds are still to be computed.
Kernel = float | BatchedProduct


def seconds(kernels: Iterable[Kernel], speed: Speed) -> list[float]:
    """Seconds of each kernel; all products are timed in one call, which takes hardly longer than a call for one product."""
    queued = list(kernels)
    products = [kernel for kernel in queued if isinstance(kernel, BatchedProduct)]
    if not products:
        return [kernel for kernel in queued if not isinstance(kernel, BatchedProduct)]
    parts = [product.parts for product in products]
    begins = np.cumsum([0, *map(len, parts[:-1])]) if any(product.loads for product in products) else None
    m, n, k, batch = np.array(list(itertools.chain.from_iterable(parts)), dtype=np.float64).T
    read, written = np.array([(product.read, product.written) for product in products], dtype=np.float64).T
    operand_bytes = speed.element_bytes if speed.operand_bytes is None else speed.operand_bytes
    timed = iter(products_s(speed, m, n, k, batch, read * operand_bytes, written * speed.element_bytes, begins).tolist())
    return [next(timed) if isinstance(kernel, BatchedProduct) else kernel for kernel in queued]
