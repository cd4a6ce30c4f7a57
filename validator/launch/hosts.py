"""Hosts: the node on which each rank of a scenario runs, and how a rank joins it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleproof.simulator.scenario.schema import Scenario

LOOPBACK: Final = "lo" if sys.platform.startswith("linux") else "lo0"


@dataclass(frozen=True)
class Host:
    """The host of a rank. namespace: network namespace to join, None for this machine's. interface: on which the rank listens.
    cores: cores of the machine that it may use, all if None."""

    namespace: Path | None = None
    interface: str = LOOPBACK
    cores: tuple[int, ...] | None = None


def nodes_of_ranks(scenario: Scenario) -> list[int]:
    """The node of each rank, as in the simulator.

    Training ranks fill one node after the other; servers have nodes of their own after those, or share these nodes in turn.
    """
    strategy, devices = scenario.strategy, scenario.cluster.node.devices
    training = [rank // devices for rank in range(strategy.training_ranks)]
    used = training[-1] + 1
    dedicated = strategy.nodes_needed(scenario.cluster) > used
    return training + [used + server if dedicated else server % used for server in range(strategy.servers)]


def needed_nodes(scenario: Scenario) -> int:
    """Number of the cluster's nodes that have ranks."""
    return max(nodes_of_ranks(scenario)) + 1


def here(ranks: int) -> Sequence[Host]:
    """The hosts of ranks that all run on this machine."""
    return [Host()] * ranks
