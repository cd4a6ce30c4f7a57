"""What one operator takes on a device: products by tiles and waves of them, the rest by the bytes that it moves.

A product computes in tiles, as many at once as there are processors, so that a last wave may be nearly empty (NVIDIA's
"Matrix Multiplication Background User's Guide" names both effects). Writing the result comes after, not under, the last
tiles' work. All of it is bound by the device's power, which a short product may exceed.
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

from scaleproof.simulator.cluster.device.cpu_core import Serial, Work, backward_work, forward_work, weights_work
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Seconds
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, Product, SavedActivation

Generation = Literal["kepler", "pascal", "volta", "turing", "ampere", "hopper", "blackwell", "cdna", "tpu", "cpu"]

_SMALL: Final = ((64, 64), (128, 64), (64, 128))
_USUAL: Final = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), *_SMALL)
_WIDE: Final = ((256, 256), (256, 192), (192, 256), (128, 192), (192, 128), *_USUAL)
# Rows and columns of the tiles that a generation's libraries compute, the largest first (names of cuBLAS's kernels, which
# profiles show; systolic arrays of a TPU have 128 × 128, arXiv 2304.01433; registers of a CPU core hold some 6 × 16).
TILES: Final[dict[Generation, tuple[tuple[int, int], ...]]] = {
    "kepler": ((128, 128), *_SMALL), "pascal": ((128, 128), *_SMALL), "volta": _USUAL, "turing": _USUAL, "ampere": _USUAL,
    "hopper": _USUAL, "blackwell": _WIDE, "cdna": _WIDE, "tpu": ((128, 128),), "cpu": ((12, 32), (6, 16)),
}  # fmt: skip
# Ways in which the inner dimension is cut, where there are too few tiles for all processors (split-K).
_SPLITS: Final = (1, 2, 4, 8)
# Inner elements that a tile takes in one turn; fewer take as long.
_TURN: Final = 64
# How sharply the bounds of tiles and of power take over from one another: norm of that order. Chosen, like
# what is counted as hidden under what, with all shapes of benchmarks/matmul.py in view.
_SHARPNESS: Final = 6
# Rows from which on expected numbers of them are rounded to multiples of 8.
_LEAST_ALIGNED: Final = 16
# Elements: what smaller tiles lose, by the inverses of their edges. Rounded from fits to the shapes of benchmarks/matmul.py.
_TILE_EDGE: Final = 64
# Tensor cores read 16 bytes at a time; NVIDIA's guide shows products slower by steps where rows start at 8, 4 or 2. What a
# step costs is a round assumption. Copies that do not wait take 4 bytes at least (CUDA's programming guide), so that rows of an
# odd length fall back to kernels without them (pytorch/pytorch, issue 146817): that a GPT-2 of 124 million parameters with
# 50257 words trains a fourth faster with 50304 (nanoGPT) makes such a product 2 to 2.5 times slower.
_ALIGNED_BYTES: Final = 16
_MISALIGNED_STEP: Final = 0.25
_ODD_STEP: Final = 1.0
# A flash kernel's queries in one block and the multiple to which it pads a head; its backward pass makes the scores again,
# five products for the forward pass's two (arXiv 2307.08691, section 3 and 4.1).
_FLASH_ROWS: Final = 128
_FLASH_WIDTH: Final = 32
_FLASH_BACKWARD: Final = 2.5
# Shares of the peak of flash attention where neither the device nor its generation states any: round assumptions.
_UNKNOWN_FLASH_SHARES: Final = (0.4, 0.3)
# Widths of heads whose rates `Kernels` tells apart.
_FLASH_NARROW: Final = 64
_FLASH_WIDE: Final = 128
# Bytes of an element of a dropout mask.
_MASK_BYTES: Final = 1


class Kernels(Spec):
    """What bends a device's times away from its peaks. Shares are of the peak rate, or of the peak bandwidth."""

    generation: Generation = Field(description="whose libraries' tiles are used")
    processors: Count = Field(description="that compute a tile each (streaming multiprocessors, compute units, cores)")
    tile_share: float = Field(gt=0, le=1, description="of the peak that the largest tiles reach, all processors busy")
    sustained_share: float = Field(1.0, gt=0, le=1, description="of the peak that the device's power sustains")
    burst_s: Seconds = Field(0.0, alias="burst", description="a product as long as this may draw twice the sustained power")
    memory_share: float = Field(gt=0, le=1, description="of the memory's bandwidth that kernels reach")
    launch_s: Seconds = Field(alias="launch", description="from the end of one kernel to the start of the next")
    issue_s: Seconds = Field(0.0, alias="issue", description="that the host takes to issue one kernel")
    host_slowdown: float = Field(
        1.0, gt=0, le=1000, description="host time per kernel over that of the host that frameworks' files assume"
    )
    flash_forward_share: float | None = Field(
        None, gt=0, le=1, description="of the peak that flash attention's blocks reach; by version and generation if absent"
    )
    flash_backward_share: float | None = Field(None, gt=0, le=1, description="the same in the backward pass")
    flash_narrow_share: float = Field(
        1.0, gt=0, le=1, description="of the rate with heads 128 wide that flash attention reaches with heads 64 wide"
    )
    flash_ramp_keys: float = Field(
        0.0, ge=0, le=1e6, description="keys whose time each block of queries takes in addition to those that it attends to"
    )
    serial: Serial | None = Field(
        None, description="of a processor's core, which hides nothing under anything else; in place of tiles, power and issue"
    )

    @property
    def flash_shares(self) -> tuple[float, float]:
        """Shares of the peak that flash attention reaches in the forward and the backward pass."""
        own = self.flash_forward_share, self.flash_backward_share
        return own[0] or _UNKNOWN_FLASH_SHARES[0], own[1] or _UNKNOWN_FLASH_SHARES[1]


class Speed(NamedTuple):
    """A device's peaks at one precision. winograd: whether libraries compute 3 × 3 convolutions so, as they do in fp32."""

    kernels: Kernels
    peak_flops: float
    memory_Bps: float
    element_bytes: int
    winograd: bool = False

    @property
    def reached_Bps(self) -> float:
        return self.memory_Bps * self.kernels.memory_share


def products_s(
    speed: Speed, m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike, read_bytes: ArrayLike, written_bytes: ArrayLike,
    begins: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Seconds of products, each `batch` of m × k by k × n; all arguments of one shape, which the result has.

    read_bytes: of both factors, and of what the result is added to. written_bytes: of the result. begins: where the parts of
    each product begin among m, n, k and batch, of grouped products that have parts of different sizes.
    """
    m, n, k, batch = (np.maximum(1.0, value) for value in (m, n, k, batch))  # part of a sample may round to no row
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
    """Seconds of all waves of tiles, of the tile and the split that take least. The tiles of all parts of a grouped product are
    computed together; those of parts with a longer inner dimension take more turns."""
    kernels = speed.kernels
    rows, columns, splits = _choices(kernels.generation)
    m, n, k, batch = (value[..., None] for value in (m, n, k, batch))
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * splits
    turns = np.ceil(k / splits / _TURN)
    if begins is not None:
        turns = _sums(tiles * turns, begins) / _sums(tiles, begins)
        tiles = _sums(tiles, begins)
    waves = np.ceil(tiles / kernels.processors)
    tile_flops = 2 * rows * columns * _TURN * turns
    edges = 1 / rows + 1 / columns
    slower = 1 + _TILE_EDGE * (edges - edges[0])
    taken_s = waves * tile_flops * slower * kernels.processors / (speed.peak_flops * kernels.tile_share)
    # parts of a split are added up in 32 bits
    added_bytes = np.where(splits > 1, _sums(2 * 4 * splits * m * n * batch, begins), 0.0)
    best: NDArray[np.float64] = (taken_s + added_bytes / speed.reached_Bps).min(axis=-1)
    return best


def _sums(values: NDArray[np.float64], begins: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Sums over the parts of each product, where products have parts."""
    return values if begins is None else np.add.reduceat(values, begins)


@functools.cache
def _choices(generation: Generation) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, columns and splits of what a library chooses from."""
    rows, columns, splits = np.array([(*tile, split) for tile in TILES[generation] for split in _SPLITS], dtype=np.float64).T
    return rows, columns, splits


def _misalignment(speed: Speed, n: NDArray[np.float64], k: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much longer a product takes whose rows do not start where tensor cores read."""
    if speed.element_bytes != 2:
        return np.ones_like(n)
    aligned = np.minimum(*(np.gcd(2 * value.astype(np.int64), _ALIGNED_BYTES) for value in (n, k)))
    steps = np.log2(_ALIGNED_BYTES / aligned)
    odd = aligned == speed.element_bytes
    slower: NDArray[np.float64] = 1 + _MISALIGNED_STEP * steps + (_ODD_STEP - _MISALIGNED_STEP) * odd
    return slower


class _BatchedProduct(NamedTuple):
    """A product whose kernel is to be timed with others'. read, written: elements. loads: as in `Matmul`. inner: whether they
    tell inner dimensions, not rows."""

    product: Product
    read: float
    written: float
    loads: tuple[float, ...] = ()
    inner: bool = False

    @property
    def parts(self) -> list[Product]:
        """The products of different sizes that it has."""
        m, n, k, _ = self.product
        if not self.loads:
            return [self.product]
        if self.inner:
            return [Product(m, n, _rounded(k * load), 1) for load in self.loads]
        return [Product(_rounded(m * load), n, k, 1) for load in self.loads]

    @classmethod
    def of(cls, product: Product) -> _BatchedProduct:
        """Of three matrices, each read or written once."""
        m, n, k, batch = product
        return cls(product, batch * (m * k + k * n), batch * m * n)


def _rounded(rows: float) -> int:
    """Whole rows, of expected numbers; many of them aligned, as the mean of aligned and misaligned numbers says nothing."""
    return 8 * round(rows / 8) if rows >= _LEAST_ALIGNED else max(1, round(rows))


# Seconds of one kernel, or what they follow from.
_Kernel = float | _BatchedProduct


def _seconds(kernels: Iterable[_Kernel], speed: Speed) -> list[float]:
    """Of each kernel; products are timed together, since each by itself takes nearly as long as all."""
    found = list(kernels)
    asked = [kernel for kernel in found if isinstance(kernel, _BatchedProduct)]
    if not asked:
        return [kernel for kernel in found if not isinstance(kernel, _BatchedProduct)]
    parts = [kernel.parts for kernel in asked]
    begins = np.cumsum([0, *map(len, parts[:-1])]) if any(kernel.loads for kernel in asked) else None
    m, n, k, batch = np.array(list(itertools.chain.from_iterable(parts)), dtype=np.float64).T
    read, written = np.array([(kernel.read, kernel.written) for kernel in asked], dtype=np.float64).T
    timed = iter(products_s(speed, m, n, k, batch, read * speed.element_bytes, written * speed.element_bytes, begins).tolist())
    return [next(timed) if isinstance(kernel, _BatchedProduct) else kernel for kernel in found]


def _memory_s(speed: Speed, elements: float) -> float:
    return speed.kernels.launch_s + elements * speed.element_bytes / speed.reached_Bps


@functools.lru_cache(maxsize=4096)
def passes_s(
    speed: Speed, operators: tuple[Operator, ...], kept: tuple[SavedActivation, ...], samples: float
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass of operators one after another, over `samples` samples.

    kept: what they keep; masks of attention scores tell of dropout between softmax and values. The host issues kernels as
    the device works: the slower of the two counts.
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
    """Seconds of those kernels of the backward pass that make gradients of weights, the last of each weighted operator."""
    if speed.kernels.serial is not None:
        return _serial_s(speed, weights_work(operators, samples))
    weighted = (operator for operator in operators if isinstance(operator, Matmul | Convolution))
    return sum(_seconds([list(_backward(operator, samples, speed))[-1] for operator in weighted], speed))


@functools.lru_cache(maxsize=4096)
def kernel_count(operators: tuple[Operator, ...]) -> tuple[int, int]:
    """Kernels of the forward and the backward pass that operators describe."""
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
    """Seconds of work that adds up."""
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
    """One element read, one written, and the mask."""
    return _memory_s(speed, elements * (2 + _MASK_BYTES / speed.element_bytes))


def _forward(operator: Operator, samples: float, speed: Speed) -> Iterator[_Kernel]:
    """Each kernel."""
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
    if isinstance(operator, MemoryBound):
        if moved := operator.backward_read + operator.backward_written:
            yield _memory_s(speed, moved * samples)
    elif isinstance(operator, Convolution):
        ways = ("output weights input", "input output weights")[0 if operator.input_gradient else 1 :]
        yield from _convolution_s(operator, samples, speed, operator.backward(samples), ways)
    elif isinstance(operator, Attention) and operator.flash:
        yield _flash_s(operator, samples, speed, _FLASH_BACKWARD, speed.kernels.flash_shares[1])
    elif isinstance(operator, Matmul):
        # the inner dimension of the last, of which weights' gradients are made, is what were rows
        *inputs, weights = map(_BatchedProduct.of, operator.backward(samples))
        yield from (one._replace(loads=operator.loads) for one in inputs)
        yield weights._replace(loads=operator.loads, inner=True)
    else:
        yield from map(_BatchedProduct.of, operator.backward(samples))
        # softmax's gradient from its output and the gradient of that
        yield _memory_s(speed, 3 * operator.scores * samples)


def _convolution_s(
    operator: Convolution, samples: float, speed: Speed, products: Iterable[Product], ways: Sequence[str]
) -> Iterator[_Kernel]:
    """Each way: what is read, twice, and what is written. A value is read once, however many windows it is in."""
    elements = {
        "input": operator.input_elements * samples,
        "output": operator.positions * operator.outputs * samples,
        "weights": float(operator.weights),
    }
    if speed.winograd and _is_dense_3x3(operator):
        transformed = _winograd(operator, samples)
        products = [transformed[way] for way in ways]
    for product, way in zip(products, ways, strict=True):
        one, other, written = (elements[name] for name in way.split())
        yield _BatchedProduct(product, one + other, written)


def _is_dense_3x3(operator: Convolution) -> bool:
    """Of stride 1 and without groups."""
    return (
        operator.kernel == (3, 3) and operator.groups == 1 and operator.input_elements == operator.inputs * operator.positions
    )


def _winograd(operator: Convolution, samples: float) -> dict[str, Product]:
    """The products of F(2 × 2, 3 × 3), 16 over four outputs at a time (arXiv 1509.09308, section 4.1), by their way."""
    fours = math.ceil(operator.positions * samples / 4)
    return {
        "input weights output": Product(fours, operator.outputs, operator.inputs, 16),
        "output weights input": Product(fours, operator.inputs, operator.outputs, 16),
        "input output weights": Product(operator.inputs, operator.outputs, fours, 16),
    }


def _flash_s(operator: Attention, samples: float, speed: Speed, work: float, share: float) -> float:
    """One kernel in blocks of queries, a head each; what a causal mask hides is not computed."""
    kernels = speed.kernels
    blocks = math.ceil(operator.queries / _FLASH_ROWS) * operator.heads * samples
    waves = max(1.0, blocks / kernels.processors)
    widths = sum(math.ceil(width / _FLASH_WIDTH) * _FLASH_WIDTH for width in (operator.width, operator.value_width))
    keys = operator.keys * operator.seen + kernels.flash_ramp_keys
    block_flops = 2.0 * min(_FLASH_ROWS, operator.queries) * keys * widths * work
    # heads between 64 and 128 wide are taken to lie on a line
    narrow = min(1.0, max(0.0, (_FLASH_WIDE - max(operator.width, operator.value_width)) / (_FLASH_WIDE - _FLASH_NARROW)))
    share *= 1 - narrow * (1 - kernels.flash_narrow_share)
    busy_s = waves * block_flops * kernels.processors / (speed.peak_flops * share)
    queries = operator.heads * operator.queries * (operator.width + operator.value_width)
    read = operator.key_heads * operator.keys * (operator.width + operator.value_width)
    moved_bytes = (queries + read) * samples * work * speed.element_bytes
    return kernels.launch_s + max(busy_s, moved_bytes / speed.reached_Bps)
