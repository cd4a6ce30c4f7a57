"""Seconds of flash attention, by blocks of queries.

A block of queries of one head passes over the keys that its mask leaves. Processors work on blocks in order of their position
in the sequence, so that under a causal mask the last blocks are the longest ones. Each block computes matrix products and
exponentials in separate units, which overlap in part (arXiv 2407.08608, section 3). A device without rates of an implementation
has shares of the peak instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scaleproof.simulator.cluster.device.kernels.rates import Rates
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.model.operators import Attention

if TYPE_CHECKING:
    from scaleproof.simulator.cluster.device.kernels.parameters import Generation, Kernels, Speed

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
    blocks in order, one at a time.
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


def on_slower_cores(rates: AttentionRates, tensor_rate: float, most: float, gain: float) -> AttentionRates:
    """Rates of full-rate tensor cores on slower ones, where products reach more of the peak, at most the share `most`, and
    power sustains `gain` times the share."""
    if tensor_rate == 1:
        return rates
    forward, backward = rates.product_share, rates.backward_product_share
    update = {"product_share": min(most, forward / tensor_rate), "sustained_share": rates.sustained_share * gain}
    if backward is not None:
        update["backward_product_share"] = min(most, backward / tensor_rate)
    return rates.model_copy(update=update)


Values = NDArray[np.float64]
# A number, or one for each of several passes.
Amount = float | Values

# Exponentials per FLOP of dense products in 16 bits, at the same clock: 16 a clock and processor, and the FLOPs of its tensor
# cores (CUDA C++ Programming Guide, throughput of arithmetic instructions; vendor's white papers of the generations).
_EXPONENTIALS_PER_FLOP: Final[dict[Generation, float]] = {
    "volta": 16 / 1024, "turing": 16 / 1024, "ampere": 16 / 2048, "ampere-rtx": 16 / 1024, "ada": 16 / 1024,
    "hopper": 16 / 4096, "blackwell": 16 / 8192, "blackwell-rtx": 16 / 1024,
}  # fmt: skip
# Of other generations: as on Ampere, a round assumption.
_USUAL_EXPONENTIALS: Final = 16 / 2048
# Orders of the norms that combine products and exponentials of a block, and blocks with the bound of power. Rounded from fits
# to published/gpu_kernels.csv, which hardly depend on them.
_OVERLAP: Final = 3
_SHARPNESS: Final = 3
# The backward pass recomputes the scores: five products where the forward pass has two (arXiv 2307.08691, sections 3 and 4.1).
BACKWARD_PRODUCTS: Final = 2.5
# Rates of the backward pass where an implementation states none, over those of the forward pass. Rounded from what the fits to
# arXiv 2407.08608's figures have in common.
_BACKWARD_PRODUCT_RATE: Final = 5 / 6
_BACKWARD_EXPONENTIAL_RATE: Final = 1 / 3
# A ring passes keys in pieces, and merges outputs: each further piece reads and writes the running output and reads its own.
_MERGED: Final = 3
# Bytes of an element beyond which kernels compute in 32 bits, for which there are shares only.
_NARROW_BYTES: Final = 2
# Waves that are lost to rounding.
_ROUNDING: Final = 1e-9

# Queries in a block of a kernel without rates, the multiple to which it pads the width of a head, and widths of heads between
# which `Kernels` interpolates its shares.
_FLASH_ROWS: Final = 128
_FLASH_WIDTH: Final = 32
_FLASH_NARROW: Final = 64
_FLASH_WIDE: Final = 128


class AttentionWork(NamedTuple):
    """Passes of attention, each field a number or of shape (passes,); fields as in `Attention`."""

    samples: Amount
    heads: Amount
    key_heads: Amount
    queries: Amount
    keys: Amount
    width: Amount
    value_width: Amount
    seen: Amount = 0.5

    @property
    def moved(self) -> Amount:
        """Elements of queries, keys, values and the output."""
        widths = self.width + self.value_width
        return self.samples * widths * (self.heads * self.queries + self.key_heads * self.keys)


def flash_s(operator: Attention, samples: float, speed: Speed, *, backward: bool = False) -> float:
    """Seconds of a flash attention kernel, by the rates of the implementation that the device runs, or by its shares."""
    rates = running(speed.kernels)
    if rates is None or speed.element_bytes > _NARROW_BYTES:
        return _by_shares_s(operator, samples, speed, backward)
    pieces = operator.pieces
    work = AttentionWork(
        samples, operator.heads, operator.key_heads, operator.queries, operator.keys / pieces, operator.width,
        operator.value_width, operator.seen,
    )  # fmt: skip
    merged = (pieces - 1) * _MERGED * operator.heads * operator.queries * operator.value_width * samples
    own_s = float(attention_s(work, rates, speed, backward=backward))
    if pieces == 1:
        return own_s
    # of the keys of other ranks, balanced ranks see all of those that they read: a half where attention is causal
    other_s = float(attention_s(work._replace(keys=work.keys * work.seen, seen=1.0), rates, speed, backward=backward))
    return own_s + (pieces - 1) * other_s + merged * speed.element_bytes / speed.reached_Bps


def running(kernels: Kernels) -> AttentionRates | None:
    """Rates of the implementation that runs, the first one; None if the device states shares of the peak or nothing."""
    if kernels.flash_forward_share is not None:
        return None
    return next(iter(kernels.attention.values()), None)


def attention_s(work: AttentionWork, rates: AttentionRates, speed: Speed, *, backward: bool = False) -> Amount:
    """Seconds of passes of attention, a number or of shape (passes,) as the fields of `work`."""
    kernels, keys, widths = speed.kernels, work.keys, work.width + work.value_width
    products, widest = BACKWARD_PRODUCTS if backward else 1.0, np.maximum(work.width, work.value_width)
    rows = _rows(rates, widest)
    pair_s = _pair_s(widths, rates, speed, backward) * _slowdown(rates, widest)
    # keys of the longest and of the shortest block: half of those on the diagonal are masked, but computed
    diagonal: Amount = 2 * rows * (1 - work.seen)
    shortest = np.minimum(keys, keys * np.maximum(0.0, 2 * work.seen - 1) + diagonal)
    blocks = np.maximum(1.0, np.ceil(work.queries / rows) * work.heads * work.samples)
    key_s: Amount = rows * pair_s
    longest_s: Amount = key_s * keys + rates.block_s
    shortest_s: Amount = key_s * shortest + rates.block_s
    blocks_s = _in_order_s(blocks / kernels.processors, longest_s, shortest_s)
    output = work.heads * work.queries * work.value_width * work.samples
    flops = 2.0 * work.heads * work.queries * keys * work.seen * widths * work.samples * products
    power_s = flops / (speed.peak_flops * _sustained_share(rates, speed))
    busy_s = (blocks_s**_SHARPNESS + power_s**_SHARPNESS) ** (1 / _SHARPNESS)
    launch_s = kernels.launch_s if rates.launch_s is None else rates.launch_s
    around = rates.backward_moved * output if backward else 0.0
    element_s = speed.element_bytes / speed.reached_Bps
    return launch_s + np.maximum(busy_s, work.moved * products * element_s) + around * element_s


def preparation_s(work: AttentionWork, rates: AttentionRates, speed: Speed) -> Amount:
    """Seconds of the kernel that rotates queries and keys and copies keys and values to a cache; zero without one.

    It reads and writes all three. What it moves may still be in the second-level cache, or part of it.
    """
    if rates.preparation is None:
        return 0.0
    read = work.samples * (
        work.heads * work.queries * work.width + work.key_heads * work.keys * (work.width + work.value_width)
    )
    moved_bytes = 2 * read * speed.element_bytes
    cached = np.minimum(1.0, rates.preparation.cache_bytes / moved_bytes)
    gain = 1 + (rates.preparation.cached_gain - 1) * cached
    return moved_bytes / (speed.memory_Bps * rates.preparation.memory_share * gain)


def _pair_s(widths: Amount, rates: AttentionRates, speed: Speed, backward: bool) -> Amount:
    """Seconds in which one processor computes the products and the exponential of one query and one key."""
    kernels = speed.kernels
    products, product_share, exponential_share = 1.0, rates.product_share, rates.exponential_share
    if backward:
        products = BACKWARD_PRODUCTS
        product_share, exponential_share = backward_shares(rates)
    processor_flops = speed.peak_flops / kernels.processors
    products_s = 2 * widths * products / (processor_flops * product_share)
    per_flop = _EXPONENTIALS_PER_FLOP.get(kernels.generation, _USUAL_EXPONENTIALS) / kernels.tensor_rate
    # only exponentials gain from faster units, not the elementwise work next to them in the backward pass
    unit_s = 1 / (processor_flops * per_flop * rates.exponential_share)
    exponential_s = 1 / (processor_flops * per_flop * exponential_share) - unit_s * (1 - 1 / kernels.exponential_gain)
    return (products_s**_OVERLAP + exponential_s**_OVERLAP) ** (1 / _OVERLAP)


def backward_shares(rates: AttentionRates) -> tuple[float, float]:
    """Shares of the peak and of the special-function units' rate that products and exponentials of the backward pass reach."""
    return (
        rates.backward_product_share or rates.product_share * _BACKWARD_PRODUCT_RATE,
        rates.backward_exponential_share or rates.exponential_share * _BACKWARD_EXPONENTIAL_RATE,
    )


def _sustained_share(rates: AttentionRates, speed: Speed) -> float:
    """Share of the peak that power sustains; outside of short bursts at most what it sustains of matrix products."""
    return rates.sustained_share if speed.burst else min(rates.sustained_share, speed.kernels.sustained_share)


def _slowdown(rates: AttentionRates, width: Amount) -> Amount:
    """Slowdown factor of wide heads."""
    points = {NARROW_HEAD: 1.0} | rates.slowdowns
    slowdown: Amount = np.interp(width, sorted(points), [points[node] for node in sorted(points)])
    return slowdown


def _rows(rates: AttentionRates, width: Amount) -> Amount:
    """Queries of a block, of heads of a width."""
    rows: Amount = np.where(width > NARROW_HEAD, float(rates.wide_block_rows), float(rates.block_rows))
    return rows


def _in_order_s(waves: Amount, longest_s: Amount, shortest_s: Amount) -> Amount:
    """Seconds until the last of `waves` waves of blocks, whose times grow evenly from the shortest to the longest.

    A processor that gets the last and longest block had before it blocks of a wave, two waves, ... earlier in the order.
    """
    whole: Amount = np.ceil(waves - _ROUNDING)
    return whole * shortest_s + (longest_s - shortest_s) * (whole - whole * (whole - 1) / (2 * waves))


def _by_shares_s(operator: Attention, samples: float, speed: Speed, backward: bool) -> float:
    """Seconds of a flash attention kernel by the device's shares of its peak."""
    kernels = speed.kernels
    share = kernels.flash_shares[backward]
    work = BACKWARD_PRODUCTS if backward else 1.0
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
