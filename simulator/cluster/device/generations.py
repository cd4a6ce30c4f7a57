"""Kernel parameters of devices that are given by data-sheet facts alone: those of their generation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from scaleproof.simulator.cluster.device.kernels.rates import State
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.units import parse_flops, parse_W

# Kernel parameters without which kernels cannot be timed, in YAML.
_NEEDED: Final = ("tile_share", "memory_share", "launch")
# Parameters that are fitted together: a device that states the first has no others from its generation.
_FITTED: Final = ("tile_share", "burst", "flash_forward_share", "flash_backward_share")
# Parameters that are round assumptions in all generations.
_ASSUMED: Final = ("memory_share", "launch", "issue")
# Precisions of the products whose energy is known, the first that a device has.
_PRECISIONS: Final = ("bf16", "fp16", "fp32")


def with_generation_kernels(device: Any) -> Any:
    """The fields of a device as in YAML, with kernel parameters of its generation where it has too few to time kernels.

    Raises ValueError for an unknown generation, and if the power limit is needed and missing.
    """
    kernels = device.get("kernels") if isinstance(device, Mapping) else None
    if not isinstance(kernels, Mapping) or all(name in kernels or f"{name}_s" in kernels for name in _NEEDED):
        return device
    known = _generation(kernels)
    names = [*(() if "tile_share" in kernels else _FITTED), *_ASSUMED]
    added = {name: known[name] for name in names if name in known and name not in kernels}
    if "tile_share" not in kernels and "sustained_share" not in kernels:
        added |= _sustained(device, known)
    unsure = {*_ASSUMED, *known.get("assumed", ())} & added.keys()
    assumed = [*device.get("assumed", ()), *(f"kernels.{name}" for name in added if name in unsure)]
    return {**device, "kernels": {**kernels, **added}, "assumed": assumed}


def deviation(state: State) -> float:
    """Standard deviation of the logarithm of a device's kernel times, by how its parameters are known."""
    return float(_data("states")[state])


def _generation(kernels: Mapping[str, Any]) -> Mapping[str, Any]:
    generations: Mapping[str, Mapping[str, Any]] = _data("generations")["generations"]
    given = kernels.get("generation")
    if not isinstance(given, str) or given not in generations:
        problem = "missing" if given is None else f"{given!r} is not known"
        raise ValueError(f"kernels.generation: {problem}; give one of {', '.join(generations)}")
    return generations[given]


def _sustained(device: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Share of the peak that the power limit sustains, by the generation's FLOP per joule; empty where neither is known."""
    if "flop_per_J" not in known:
        return {}
    limit = device.get("power_limit", device.get("power_limit_W"))
    if limit is None:
        message = "missing; it bounds what kernels sustain whose parameters come from the generation; add it, as in 700 W"
        raise ValueError(f"power_limit: {message}")
    peaks = device.get("peak", device.get("peak_flops"))
    peak = next((peaks[name] for name in _PRECISIONS if name in peaks), None) if isinstance(peaks, Mapping) else None
    try:
        limit_W = parse_W(limit) if isinstance(limit, str) else float(limit)
        peak_flops = parse_flops(peak) if isinstance(peak, str) else float(peak or 0)
    except (UnitError, TypeError):  # reported where the field is validated
        return {}
    if not limit_W or not peak_flops:
        return {}
    return {"sustained_share": min(1.0, known["flop_per_J"] * limit_W / peak_flops), "sustained_at": limit}


@functools.cache
def _data(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / f"{name}.yaml")
    return found
