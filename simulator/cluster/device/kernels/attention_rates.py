"""Rates of implementations of flash attention: of a measured device, or of a generation of devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.device.kernels.rates import Rates
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, Seconds

# Widest head of which a kernel has its usual block of queries.
NARROW: Final = 128
# Name of the fastest implementation in the files of frameworks, and the one of a framework that names none: PyTorch's.
BEST: Final = "best"
USUAL: Final = "flash-2"


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
def general_rates() -> dict[str, dict[str, AttentionRates]]:
    """Shipped rates by implementation and generation of devices."""
    found: dict[str, Any] = yaml_file.read(catalog.ROOT / "kernels" / "attention.yaml").data
    return {
        name: {generation: AttentionRates.model_validate(rates) for generation, rates in by_generation.items()}
        for name, by_generation in found["implementations"].items()
    }


def general(implementation: str, generation: str) -> AttentionRates | None:
    """Shipped rates of an implementation on a generation; None if none ships. "best" is no slower than any that trains."""
    if implementation != BEST:
        return general_rates().get(implementation, {}).get(generation)
    return best([rates[generation] for rates in general_rates().values() if generation in rates])


def best(known: Sequence[AttentionRates]) -> AttentionRates | None:
    """Rates whose parameters are each the best of implementations that train; None if there are none."""
    known = [rates for rates in known if rates.preparation is None]
    if not known:
        return None
    widths = {width for rates in known for width in rates.slowdowns}
    fastest = {name: max(getattr(rates, name) for rates in known) for name in _FASTER if all(getattr(r, name) for r in known)}
    least = {name: min(getattr(rates, name) for rates in known) for name in _SLOWER}
    slowdowns = {width: min(min(rates.slowdowns.get(width, 1.0) for rates in known), 1.0) for width in widths}
    return known[0].model_copy(update={**fastest, **least, "slowdowns": slowdowns, "launch_s": None, "state": "assumed"})
