"""Matrix products in 8 and 4 bits: recipes of scaling, with the bytes that elements have and that casts move."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Final, Literal, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file

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
