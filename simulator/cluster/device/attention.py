"""Seconds of flash attention, by blocks of queries.

A block of queries of one head passes over the keys that its mask leaves. Processors work on blocks in order of their position
in the sequence, so that under a causal mask the last blocks are the longest ones. Each block computes matrix products and
exponentials in separate units, which overlap in part (arXiv 2407.08608, section 3). A device without rates of an implementation
has shares of the peak instead.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.device.attention_rates import NARROW, AttentionRates
from scaleproof.simulator.cluster.device.kernels import Generation, Kernels, Speed
from scaleproof.simulator.model.operators import Attention

Values = NDArray[np.float64]

# Exponentials per FLOP of dense products in 16 bits, at the same clock: 16 a clock and processor, and the FLOPs of its tensor
# cores (CUDA C++ Programming Guide, throughput of arithmetic instructions; vendor's white papers of the generations).
_EXPONENTIALS_PER_FLOP: Final[dict[Generation, float]] = {
    "volta": 16 / 1024, "turing": 16 / 1024, "ampere": 16 / 2048, "ada": 16 / 1024, "hopper": 16 / 4096, "blackwell": 16 / 8192,
}  # fmt: skip
# Of other generations: as on Ampere, a round assumption.
_USUAL_EXPONENTIALS: Final = 16 / 2048
# Orders of the norms that combine products and exponentials of a block, and blocks with the bound of power. Rounded from fits
# to published/gpu_kernels.csv, which hardly depend on them.
_OVERLAP: Final = 3
_SHARPNESS: Final = 3
# The backward pass recomputes the scores: five products where the forward pass has two (arXiv 2307.08691, sections 3 and 4.1).
_BACKWARD_PRODUCTS: Final = 2.5
# Rates of the backward pass where an implementation states none, over those of the forward pass. Rounded from what the fits to
# arXiv 2407.08608's figures have in common.
_BACKWARD_PRODUCT_RATE: Final = 5 / 6
_BACKWARD_EXPONENTIAL_RATE: Final = 1 / 3
# A ring passes keys in pieces, and merges outputs: each further piece reads and writes the running output and reads its own.
_MERGED: Final = 3

# Queries in a block of a kernel without rates, the multiple to which it pads the width of a head, and widths of heads between
# which `Kernels` interpolates its shares.
_FLASH_ROWS: Final = 128
_FLASH_WIDTH: Final = 32
_FLASH_NARROW: Final = 64
_FLASH_WIDE: Final = 128


class AttentionWork(NamedTuple):
    """Passes of attention, each column of shape (passes,) or a number; fields as in `Attention`."""

    samples: ArrayLike
    heads: ArrayLike
    key_heads: ArrayLike
    queries: ArrayLike
    keys: ArrayLike
    width: ArrayLike
    value_width: ArrayLike
    seen: ArrayLike = 0.5


def flash_s(operator: Attention, samples: float, speed: Speed, *, backward: bool = False) -> float:
    """Seconds of a flash attention kernel, by the rates of the implementation that the device runs, or by its shares."""
    rates = running(speed.kernels)
    if rates is None or speed.element_bytes > 2:
        return _by_shares_s(operator, samples, speed, backward)
    pieces = operator.pieces
    work = AttentionWork(
        samples, operator.heads, operator.key_heads, operator.queries, operator.keys / pieces, operator.width,
        operator.value_width, operator.seen,
    )  # fmt: skip
    merged = (pieces - 1) * _MERGED * operator.heads * operator.queries * operator.value_width * samples
    return pieces * float(attention_s(work, rates, speed, backward=backward)) + merged * speed.element_bytes / speed.reached_Bps


def running(kernels: Kernels) -> AttentionRates | None:
    """Rates of the implementation that runs, the first one; None if the device states shares of the peak or nothing."""
    if kernels.flash_forward_share is not None:
        return None
    return next(iter(kernels.attention.values()), None)


def attention_s(work: AttentionWork, rates: AttentionRates, speed: Speed, *, backward: bool = False) -> Values:
    """Seconds of passes of attention; the result has the shape of the columns of `work`."""
    samples, heads, key_heads, queries, keys, width, value_width, seen = (np.asarray(column, dtype=float) for column in work)
    kernels = speed.kernels
    products, widest = _BACKWARD_PRODUCTS if backward else 1.0, np.maximum(width, value_width)
    rows = np.where(widest > NARROW, rates.wide_block_rows, rates.block_rows)
    pair_s = _pair_s(width + value_width, rates, speed, backward) * _slowdown(rates, widest)
    # keys of the longest and of the shortest block: half of those on the diagonal are masked, but computed
    shortest = np.minimum(keys, keys * np.maximum(0.0, 2 * seen - 1) + rows * 2 * (1 - seen))
    blocks = np.maximum(1.0, np.ceil(queries / rows) * heads * samples)
    blocks_s = _in_order_s(blocks / kernels.processors, *(rows * each * pair_s + rates.block_s for each in (keys, shortest)))
    flops = 2.0 * heads * queries * keys * seen * (width + value_width) * samples * products
    power_s = flops / (speed.peak_flops * rates.sustained_share)
    busy_s = (blocks_s**_SHARPNESS + power_s**_SHARPNESS) ** (1 / _SHARPNESS)
    output, read = heads * queries * value_width, key_heads * keys * (width + value_width)
    moved = (heads * queries * width + output + read) * samples * products
    launch_s = kernels.launch_s if rates.launch_s is None else rates.launch_s
    around = rates.backward_moved * output * samples if backward else 0.0
    element_s = speed.element_bytes / speed.reached_Bps
    result: Values = launch_s + np.maximum(busy_s, moved * element_s) + around * element_s
    return result


def preparation_s(work: AttentionWork, rates: AttentionRates, speed: Speed) -> Values:
    """Seconds of the kernel that rotates queries and keys and copies keys and values to a cache; zero without one.

    All that it moves may still be in the L2 cache, or part of it.
    """
    samples, heads, key_heads, queries, keys, width, value_width, _ = (np.asarray(column, dtype=float) for column in work)
    if rates.preparation is None:
        return np.zeros(np.broadcast(samples, heads).shape)
    moved_bytes = speed.element_bytes * samples * 2 * (heads * queries * width + key_heads * keys * (width + value_width))
    cached = np.minimum(1.0, (speed.kernels.l2_bytes or 0.0) / moved_bytes)
    gain = 1 + (rates.preparation.cached_gain - 1) * cached
    result: Values = moved_bytes / (speed.memory_Bps * rates.preparation.memory_share * gain)
    return result


def _pair_s(widths: Values, rates: AttentionRates, speed: Speed, backward: bool) -> Values:
    """Seconds in which one processor computes the products and the exponential of one query and one key."""
    kernels = speed.kernels
    products, product_share, exponential_share = 1.0, rates.product_share, rates.exponential_share
    if backward:
        products = _BACKWARD_PRODUCTS
        product_share = rates.backward_product_share or product_share * _BACKWARD_PRODUCT_RATE
        exponential_share = rates.backward_exponential_share or exponential_share * _BACKWARD_EXPONENTIAL_RATE
    processor_flops = speed.peak_flops / kernels.processors
    products_s = 2 * widths * products / (processor_flops * product_share)
    per_flop = _EXPONENTIALS_PER_FLOP.get(kernels.generation, _USUAL_EXPONENTIALS)
    exponential_s = 1 / (processor_flops * per_flop * exponential_share)
    pair_s: Values = (products_s**_OVERLAP + exponential_s**_OVERLAP) ** (1 / _OVERLAP)
    return pair_s


def _slowdown(rates: AttentionRates, width: Values) -> Values:
    """Slowdown factor of wide heads."""
    points = {NARROW: 1.0} | rates.slowdowns
    widths = sorted(points)
    return np.interp(width, widths, [points[one] for one in widths])


def _in_order_s(waves: Values, longest_s: Values, shortest_s: Values) -> Values:
    """Seconds until the last of `waves` waves of blocks, whose times grow evenly from the shortest to the longest.

    A processor that gets the last and longest block had before it blocks of a wave, two waves, ... earlier in the order.
    """
    whole = np.ceil(waves - 1e-9)
    earlier = whole * (whole - 1) / (2 * waves)
    result: Values = whole * shortest_s + (longest_s - shortest_s) * (whole - earlier)
    return result


def _by_shares_s(operator: Attention, samples: float, speed: Speed, backward: bool) -> float:
    """Seconds of a flash attention kernel by the device's shares of its peak."""
    kernels = speed.kernels
    share = kernels.flash_shares[backward]
    work = _BACKWARD_PRODUCTS if backward else 1.0
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
