"""Rates at which networks carry messages, below those of their cards: named states, and TCP connections."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.units import parse_Bps


class Slowdown(NamedTuple):
    """Slowdown factor of a network's bandwidth, with the ends of its 90 % interval."""

    value: float = 1.0
    low: float = 1.0
    high: float = 1.0


class Sockets(NamedTuple):
    """TCP connections for each of NCCL's channels, and the largest rate of one."""

    connections: int
    rate_Bps: float


@functools.cache
def states() -> Mapping[str | None, Slowdown]:
    """Slowdowns by the state of a network; no state: none."""
    known = _data("states")
    return {None: Slowdown()} | {name: Slowdown(one["slowdown"], one["low"], one["high"]) for name, one in known.items()}


def state_note(state: str | None) -> str:
    """What a network's state does to predictions; "" for a network without one."""
    if state is None:
        return ""
    known = states()[state]
    return (
        f"cluster.network.state: {state}: the bandwidth is divided by {known.value:g} (90 %: {known.low:g} to {known.high:g}); "
        "measure it with nccl-tests, and `scaleproof import nccl-tests` in place of the state"
    )


@functools.cache
def sockets() -> Mapping[str, Sockets]:
    """TCP connections by the kind of network."""
    return {name: Sockets(one["connections"], parse_Bps(one["rate"])) for name, one in _data("sockets").items()}


def _data(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml_file.shipped(catalog.ROOT / "network" / f"{name}.yaml")[name]
    return found
