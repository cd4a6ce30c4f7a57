"""Compatibility: the scenarios that netlab can measure, and what it leaves out of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_Bps
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import needed_nodes, nodes_of_ranks
from scaleproof.validator.launch.refusal import Refusal, refuse
from scaleproof.validator.netlab import wiring
from scaleproof.validator.netlab.tenants import with_neighbour

_CORES: Final = os.cpu_count() or 1
# Upper bound on the rate of one core: two cores of a virtual machine move 42 Gbit/s over two hosts' nearly unlimited links.
_MOST_Bps: Final = 50e9 / 8
# Rate of one core at which links still reach their rates: 16 hosts of 500 Mbit/s on two cores do.
_EASY_Bps: Final = 3.2e9 / 8


def lab_cluster(scenario: Scenario) -> Cluster:
    """The scenario's cluster, reduced to the nodes that have ranks, and one more with which tenants exchange their traffic."""
    return with_neighbour(scenario.cluster.model_copy(update={"nodes": needed_nodes(scenario)}), scenario.unevenness)


def check(scenario: Scenario) -> None:
    """Raises InputError where a lab on this machine cannot represent the scenario's cluster."""
    try:
        lab = wiring.plan(lab_cluster(scenario))
    except InputError as error:
        raise InputError(f"{scenario.name}: {error}") from None
    refuse(scenario, _refusals(scenario, lab))


def warning(scenario: Scenario) -> str:
    """A warning of what the lab leaves out; empty if nothing."""
    if scenario.cluster.node.link is None or not _shares_hosts(scenario):
        return ""
    return (
        "cluster.node.link is not limited: ranks of one host talk over its loopback; "
        "give each rank a host of its own (cluster.node.devices: 1) to measure links that are"
    )


def provenance(scenario: Scenario) -> dict[str, str]:
    """The provenance entry of messages within hosts; empty where each rank has a host of its own."""
    return {"inside a host": "loopback, not limited"} if _shares_hosts(scenario) else {}


def _refusals(scenario: Scenario, lab: wiring.WiringPlan) -> Iterator[Refusal]:
    """Rates that a lab on this machine does not reach, or does not limit."""
    rates_Bps, link = [cable.rate_Bps for cable in lab.hosts], scenario.cluster.node.link
    easy_bit = _rounded_down(_CORES * _EASY_Bps / len(rates_Bps) * 8)
    yield (
        sum(rates_Bps) > _CORES * _MOST_Bps,
        "cluster.network.bandwidth",
        f"{len(rates_Bps)} hosts of up to {format_Bps(max(rates_Bps))} move up to {format_Bps(sum(rates_Bps))} at once, "
        f"{_CORES} cores {format_Bps(_CORES * _MOST_Bps)} at most",
        f'measure a slower network: --set "cluster.network.bandwidth={easy_bit / 1e6:g} Mbit/s"',
    )
    if link is None or not _shares_hosts(scenario):
        return
    fastest_Bps = max(rates_Bps[: needed_nodes(scenario)])
    yield (
        link.bandwidth_Bps < fastest_Bps,
        "cluster.node.link",
        f"netlab does not limit it, and with {format_Bps(link.bandwidth_Bps)} it is slower than the network's "
        f"{format_Bps(fastest_Bps)}",
        "make it faster than that, or give each rank a node of its own",
    )


def _shares_hosts(scenario: Scenario) -> bool:
    nodes = nodes_of_ranks(scenario)
    return len(set(nodes)) < len(nodes)


def _rounded_down(number: float) -> float:
    """The number rounded down to one significant digit."""
    unit = 10 ** math.floor(math.log10(number))
    return float(number // unit * unit)
