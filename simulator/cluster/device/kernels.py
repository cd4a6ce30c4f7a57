"""Kernel times of operators on a device: matrix products by tiles and waves, other operators by the bytes that they move.

A product computes in tiles, one per processor at a time, so that the last wave may be nearly empty (NVIDIA's "Matrix
Multiplication Background User's Guide" describes both effects). Writing the result follows the last tiles' work and does not
overlap it. The device's power bounds the rate; a short product may exceed it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from scaleproof.simulator.cluster.device.cpu_core import SerialCosts, Work, backward_work, forward_work, weights_work
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Seconds
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, Product, SavedActivation

Generation = Literal["kepler", "pascal", "volta", "turing", "ampere", "hopper", "blackwell", "cdna", "tpu", "cpu"]

_SMALL: Final = ((64, 64), (128, 64), (64, 128))
_USUAL: Final = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), *_SMALL)
_WIDE: Final = ((256, 256), (256, 192), (192, 256), (128, 192), (192, 128), *_USUAL)
# Rows and columns of the tiles of a generation's libraries, the largest first (from the names of cuBLAS kernels in profiles;
# a TPU's systolic arrays have 128 × 128, arXiv 2304.01433; the registers of a CPU core fit some 6 × 16).
TILES: Final[dict[Generation, tuple[tuple[int, int], ...]]] = {
    "kepler": ((128, 128), *_SMALL), "pascal": ((128, 128), *_SMALL), "volta": _USUAL, "turing": _USUAL, "ampere": _USUAL,
    "hopper": _USUAL, "blackwell": _WIDE, "cdna": _WIDE, "tpu": ((128, 128),), "cpu": ((12, 32), (6, 16)),
}  # fmt: skip
# Numbers of parts into which the inner dimension is split if there are too few tiles for all processors (split-K).
_SPLITS: Final = (1, 2, 4, 8)
# Inner elements of one iteration of a tile's main loop; an iteration over fewer elements takes as long.
_LOOP_STEP: Final = 64
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
# trains a fourth faster with 50304 words than with 50257 (nanoGPT), which makes such a product 2 to 2.5 times slower.
_ALIGNED_BYTES: Final = 16
_MISALIGNED_STEP: Final = 0.25
_ODD_STEP: Final = 1.0
# Queries in a block of a flash kernel, and the multiple to which it pads the width of a head. Its backward pass recomputes the
# scores: five products where the forward pass has two (arXiv 2307.08691, sections 3 and 4.1).
_FLASH_ROWS: Final = 128
_FLASH_WIDTH: Final = 32
_FLASH_BACKWARD: Final = 2.5
# Flash attention's shares of the peak, forward and backward, if the device states none: round assumptions.
_UNKNOWN_FLASH_SHARES: Final = (0.4, 0.3)
# Widths of heads between which `Kernels` interpolates the rates.
_FLASH_NARROW: Final = 64
_FLASH_WIDE: Final = 128
# Bytes of an element of a dropout mask.
_MASK_BYTES: Final = 1


class Kernels(Spec):
    """Parameters of the kernel model. Shares are of the device's peak rate or of its memory bandwidth."""

    generation: Generation = Field(description="hardware generation, which determines the tiles of the libraries")
    processors: Count = Field(description="number of streaming multiprocessors, compute units or cores, one tile each")
    tile_share: float = Field(gt=0, le=1, description="share of the peak that the largest tiles reach on all processors")
    sustained_share: float = Field(1.0, gt=0, le=1, description="share of the peak that the power limit sustains")
    burst_s: Seconds = Field(0.0, alias="burst", description="duration of a product that may draw twice the sustained power")
    memory_share: float = Field(gt=0, le=1, description="share of the memory bandwidth that kernels reach")
    launch_s: Seconds = Field(alias="launch", description="time from the end of one kernel to the start of the next")
    issue_s: Seconds = Field(0.0, alias="issue", description="host time to issue one kernel")
    host_slowdown: float = Field(
        1.0, gt=0, le=1000, description="host time per kernel over that of the host that frameworks' files assume"
    )
    flash_forward_share: float | None = Field(
        None, gt=0, le=1, description="share of the peak that flash attention reaches; by version and generation if absent"
    )
    flash_backward_share: float | None = Field(None, gt=0, le=1, description="the same share in the backward pass")
    flash_narrow_share: float = Field(
        1.0, gt=0, le=1, description="rate of flash attention with heads 64 wide over that with heads 128 wide"
    )
    flash_ramp_keys: float = Field(
        0.0, ge=0, le=1e6, description="fixed time of each block of queries, as a number of additional keys"
    )
    serial: SerialCosts | None = Field(
        None, description="costs on a CPU core, which overlaps nothing; they replace tiles, power and issue time"
    )

    @property
    def flash_shares(self) -> tuple[float, float]:
        """Shares of the peak that flash attention reaches in the forward and the backward pass."""
        forward, backward = _UNKNOWN_FLASH_SHARES
        return self.flash_forward_share or forward, self.flash_backward_share or backward


class Speed(NamedTuple):
    """A device's peaks at one precision. winograd: whether libraries use it for 3 × 3 convolutions, as they do in fp32."""

    kernels: Kernels
    peak_flops: float
    memory_Bps: float
    element_bytes: int
    winograd: bool = False

    @property
    def reached_Bps(self) -> float:
        """Memory bandwidth that kernels reach."""
        return self.memory_Bps * self.kernels.memory_share


def products_s(
    speed: Speed, m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike, read_bytes: ArrayLike, written_bytes: ArrayLike,
    begins: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds of matrix products, each `batch` of m × k by k × n; the arguments and the result have the same shape.

    read_bytes: both factors, and the buffer that the result is added to, if any. written_bytes: the result. begins: for grouped
    products with parts of different sizes, the index of each product's first part in m, n, k and batch, shape (products,).
    """
    m, n, k, batch = (np.maximum(1.0, value) for value in (m, n, k, batch))  # part of a sample may round to zero rows
    kernels = speed.kernels
    flops = _sums(2 * m * n * k * batch, begins)
    misalignment = _misalignment(speed, n, k)
    misalignment = misalignment if begins is None else np.maximum.reduceat(misalignment, begins)
    tiles_s = _tiles_s(speed, m, n, k, batch, begins) * misalignment
    power_s = flops / (speed.peak_flops * kernels.sustained_share)
    power_s = power_s * power_s / (power_s + kernels.burst_s)
    busy_s = (tiles_s**_SHARPNESS + power_s**_SHARPNESS) ** (1 / _SHARPNESS)
    read_s, written_s = np.asarray(read_bytes) / speed.reached_Bps, np.asarray(written_bytes) / speed.reached_Bps
    result: NDArray[np.float64] = kernels.launch_s + np.maximum(busy_s, read_s) + written_s
    return result


def _tiles_s(
    speed: Speed, m: NDArray[np.float64], n: NDArray[np.float64], k: NDArray[np.float64], batch: NDArray[np.float64],
    begins: NDArray[np.int64] | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds of all waves of tiles, with the fastest choice of tile and split. The parts of a grouped product share the waves;
    tiles of parts with a longer inner dimension have more loop iterations."""
    kernels = speed.kernels
    rows, columns, splits = _choices(kernels.generation)
    m, n, k, batch = (value[..., None] for value in (m, n, k, batch))
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * splits
    iterations = np.ceil(k / splits / _LOOP_STEP)
    if begins is not None:
        iterations = _sums(tiles * iterations, begins) / _sums(tiles, begins)
        tiles = _sums(tiles, begins)
    waves = np.ceil(tiles / kernels.processors)
    tile_flops = 2 * rows * columns * _LOOP_STEP * iterations
    edges = 1 / rows + 1 / columns
    slowdown = 1 + _TILE_EDGE * (edges - edges[0])
    waves_s = waves * tile_flops * slowdown * kernels.processors / (speed.peak_flops * kernels.tile_share)
    # the partial sums of a split are added up in 32 bits
    split_bytes = np.where(splits > 1, _sums(2 * 4 * splits * m * n * batch, begins), 0.0)
    fastest_s: NDArray[np.float64] = (waves_s + split_bytes / speed.reached_Bps).min(axis=-1)
    return fastest_s


def _sums(values: NDArray[np.float64], begins: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Sums over the parts of each product; the values themselves if products have no parts."""
    return values if begins is None else np.add.reduceat(values, begins)


@functools.cache
def _choices(generation: Generation) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, columns and splits of all kernels that a library chooses from; arrays of shape (choices,)."""
    rows, columns, splits = np.array([(*tile, split) for tile in TILES[generation] for split in _SPLITS], dtype=np.float64).T
    return rows, columns, splits


def _misalignment(speed: Speed, n: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slowdown factor of products whose rows are not aligned to the reads of tensor cores."""
    if speed.element_bytes != 2:
        return np.ones_like(n)
    aligned = np.minimum(*(np.gcd(2 * value.astype(np.int64), _ALIGNED_BYTES) for value in (n, k)))
    steps = np.log2(_ALIGNED_BYTES / aligned)
    odd = aligned == speed.element_bytes
    slowdown: NDArray[np.float64] = 1 + _MISALIGNED_STEP * steps + (_ODD_STEP - _MISALIGNED_STEP) * odd
    return slowdown


class _BatchedProduct(NamedTuple):
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
    def of(cls, product: Product) -> _BatchedProduct:
        """A product that reads both factors once and writes the result once."""
        m, n, k, batch = product
        return cls(product, batch * (m * k + k * n), batch * m * n)


def _rounded(rows: float) -> int:
    """An expected number of rows as an integer; large ones are aligned, since expected values have no meaningful alignment."""
    return 8 * round(rows / 8) if rows >= _LEAST_ALIGNED else max(1, round(rows))


# Seconds of a kernel, or a product whose seconds are still to be computed.
_Kernel = float | _BatchedProduct


def _seconds(kernels: Iterable[_Kernel], speed: Speed) -> list[float]:
    """Seconds of each kernel; all products are timed in one call, which takes hardly longer than a call for one product."""
    queued = list(kernels)
    products = [kernel for kernel in queued if isinstance(kernel, _BatchedProduct)]
    if not products:
        return [kernel for kernel in queued if not isinstance(kernel, _BatchedProduct)]
    parts = [product.parts for product in products]
    begins = np.cumsum([0, *map(len, parts[:-1])]) if any(product.loads for product in products) else None
    m, n, k, batch = np.array(list(itertools.chain.from_iterable(parts)), dtype=np.float64).T
    read, written = np.array([(product.read, product.written) for product in products], dtype=np.float64).T
    timed = iter(products_s(speed, m, n, k, batch, read * speed.element_bytes, written * speed.element_bytes, begins).tolist())
    return [next(timed) if isinstance(kernel, _BatchedProduct) else kernel for kernel in queued]


def _memory_s(speed: Speed, elements: float) -> float:
    return speed.kernels.launch_s + elements * speed.element_bytes / speed.reached_Bps


@functools.lru_cache(maxsize=4096)
def passes_s(
    speed: Speed, operators: tuple[Operator, ...], kept: tuple[SavedActivation, ...], samples: float
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass of consecutive operators over `samples` samples.

    kept: their saved activations; a mask of attention scores means that there is dropout between softmax and values. The host
    issues kernels while the device computes: the slower of the two determines the time.
    """
    if speed.kernels.serial is not None:
        return _serial_s(speed, forward_work(operators, samples)), _serial_s(speed, backward_work(operators, samples))
    dropped = sum(item.elements for item in kept if item.group == "attention" and item.element_bytes == _MASK_BYTES)
    forward = [kernel for operator in operators for kernel in _forward(operator, samples, speed)]
    backward = [kernel for operator in operators for kernel in _backward(operator, samples, speed)]
    if dropped:
        forward.append(_dropout_s(speed, dropped * samples))
        backward.append(_dropout_s(speed, dropped * samples))
    both_s = _seconds([*forward, *backward], speed)
    return _pass_s(both_s[: len(forward)], speed), _pass_s(both_s[len(forward) :], speed)


@functools.lru_cache(maxsize=4096)
def weights_s(speed: Speed, operators: tuple[Operator, ...], samples: float) -> float:
    """Seconds of the kernels that compute weight gradients: the last backward kernel of each operator with weights."""
    if speed.kernels.serial is not None:
        return _serial_s(speed, weights_work(operators, samples))
    weighted = (operator for operator in operators if isinstance(operator, Matmul | Convolution))
    return sum(_seconds([list(_backward(operator, samples, speed))[-1] for operator in weighted], speed))


@functools.lru_cache(maxsize=4096)
def kernel_count(operators: tuple[Operator, ...]) -> tuple[int, int]:
    """Number of kernels of the operators in the forward and in the backward pass."""
    return (
        sum(
            1 if isinstance(o, MemoryBound | Convolution) or _is_flash(o) else len(o.forward(1)) + isinstance(o, Attention)
            for o in operators
        ),
        sum(
            1 if isinstance(o, MemoryBound) or _is_flash(o) else len(o.backward(1)) + isinstance(o, Attention)
            for o in operators
        ),
    )


def _is_flash(operator: Operator) -> bool:
    return isinstance(operator, Attention) and operator.flash


def _serial_s(speed: Speed, work: Work) -> float:
    """Seconds of work on a CPU core, where all times add up."""
    kernels, peak_flops = speed.kernels, speed.peak_flops
    assert kernels.serial is not None
    forward, backward = kernels.flash_shares
    flash_flops = forward * peak_flops, backward * peak_flops
    element_s = speed.element_bytes / speed.reached_Bps
    each_s = kernels.serial.each_s(kernels.launch_s, kernels.tile_share * peak_flops, *flash_flops, element_s)
    return sum(each_s[name] * amount for name, amount in work.items())


def _pass_s(kernels_s: Sequence[float], speed: Speed) -> float:
    return max(speed.kernels.issue_s * len(kernels_s), sum(kernels_s))


def _dropout_s(speed: Speed, elements: float) -> float:
    """Seconds of dropout, which reads and writes each element and a mask."""
    return _memory_s(speed, elements * (2 + _MASK_BYTES / speed.element_bytes))


def _forward(operator: Operator, samples: float, speed: Speed) -> Iterator[_Kernel]:
    """Kernels of an operator's forward pass."""
    if isinstance(operator, MemoryBound):
        yield _memory_s(speed, (operator.read + operator.written) * samples)
    elif isinstance(operator, Convolution):
        yield from _convolution_s(operator, samples, speed, operator.forward(samples), ("input weights output",))
    elif isinstance(operator, Attention) and operator.flash:
        yield _flash_s(operator, samples, speed, 1.0, speed.kernels.flash_shares[0])
    else:
        loads = operator.loads if isinstance(operator, Matmul) else ()
        yield from (_BatchedProduct.of(product)._replace(loads=loads) for product in operator.forward(samples))
        if isinstance(operator, Attention):  # softmax reads the scores and writes as many
            yield _memory_s(speed, 2 * operator.scores * samples)


def _backward(operator: Operator, samples: float, speed: Speed) -> Iterator[_Kernel]:
    """Kernels of an operator's backward pass, that of the weight gradients last."""
    if isinstance(operator, MemoryBound):
        if moved := operator.backward_read + operator.backward_written:
            yield _memory_s(speed, moved * samples)
    elif isinstance(operator, Convolution):
        tensors = ("output weights input", "input output weights")[0 if operator.input_gradient else 1 :]
        yield from _convolution_s(operator, samples, speed, operator.backward(samples), tensors)
    elif isinstance(operator, Attention) and operator.flash:
        yield _flash_s(operator, samples, speed, _FLASH_BACKWARD, speed.kernels.flash_shares[1])
    elif isinstance(operator, Matmul):
        # the inner dimension of the weight gradients' product is the rows of the forward product
        *inputs, weights = map(_BatchedProduct.of, operator.backward(samples))
        yield from (product._replace(loads=operator.loads) for product in inputs)
        yield weights._replace(loads=operator.loads, inner=True)
    else:
        yield from map(_BatchedProduct.of, operator.backward(samples))
        # the gradient of softmax reads its output and the gradient of its output
        yield _memory_s(speed, 3 * operator.scores * samples)


def _convolution_s(
    operator: Convolution, samples: float, speed: Speed, products: Iterable[Product], tensors: Sequence[str]
) -> Iterator[_Kernel]:
    """Kernels of a convolution's products. tensors: for each product the names of the two tensors that it reads and of the one
    that it writes. Each value is read once, even if it is in several windows."""
    elements = {
        "input": operator.input_elements * samples,
        "output": operator.positions * operator.outputs * samples,
        "weights": float(operator.weights),
    }
    if speed.winograd and _is_dense_3x3(operator):
        transformed = _winograd(operator, samples)
        products = [transformed[names] for names in tensors]
    for product, names in zip(products, tensors, strict=True):
        left, right, written = (elements[name] for name in names.split())
        yield _BatchedProduct(product, left + right, written)


def _is_dense_3x3(operator: Convolution) -> bool:
    """Whether a convolution is 3 × 3 with stride 1 and without groups."""
    return (
        operator.kernel == (3, 3) and operator.groups == 1 and operator.input_elements == operator.inputs * operator.positions
    )


def _winograd(operator: Convolution, samples: float) -> dict[str, Product]:
    """The products of F(2 × 2, 3 × 3), 16 for each tile of four outputs (arXiv 1509.09308, section 4.1), by their tensors."""
    tiles = math.ceil(operator.positions * samples / 4)
    return {
        "input weights output": Product(tiles, operator.outputs, operator.inputs, 16),
        "output weights input": Product(tiles, operator.inputs, operator.outputs, 16),
        "input output weights": Product(operator.inputs, operator.outputs, tiles, 16),
    }


def _flash_s(operator: Attention, samples: float, speed: Speed, work: float, share: float) -> float:
    """Seconds of a flash attention kernel, which computes blocks of queries of one head and skips masked scores. work: products
    per product of the forward pass. share: of the peak."""
    kernels = speed.kernels
    blocks = math.ceil(operator.queries / _FLASH_ROWS) * operator.heads * samples
    waves = max(1.0, blocks / kernels.processors)
    widths = sum(math.ceil(width / _FLASH_WIDTH) * _FLASH_WIDTH for width in (operator.width, operator.value_width))
    keys = operator.keys * operator.seen + kernels.flash_ramp_keys
    block_flops = 2.0 * min(_FLASH_ROWS, operator.queries) * keys * widths * work
    # linear interpolation for heads between 64 and 128 wide
    narrow = min(1.0, max(0.0, (_FLASH_WIDE - max(operator.width, operator.value_width)) / (_FLASH_WIDE - _FLASH_NARROW)))
    share *= 1 - narrow * (1 - kernels.flash_narrow_share)
    busy_s = waves * block_flops * kernels.processors / (speed.peak_flops * share)
    queries = operator.heads * operator.queries * (operator.width + operator.value_width)
    read = operator.key_heads * operator.keys * (operator.width + operator.value_width)
    moved_bytes = (queries + read) * samples * work * speed.element_bytes
    return kernels.launch_s + max(busy_s, moved_bytes / speed.reached_Bps)
