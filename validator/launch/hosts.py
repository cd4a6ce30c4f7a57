"""Hosts: on which of a cluster's nodes each rank of a scenario runs, and how a rank gets there."""

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
    """Where a rank runs. namespace: the network that it joins, None for this machine's. interface: on which it listens. cores:
    of the machine that it may use, all if None."""

    namespace: Path | None = None
    interface: str = LOOPBACK
    cores: tuple[int, ...] | None = None


def nodes_of_ranks(scenario: Scenario) -> list[int]:
    """The node of each rank, as the simulator has it.

    Those that train fill one node after the other; servers have nodes of their own behind those, or take the others' in turn.
    """
    strategy, devices = scenario.strategy, scenario.cluster.node.devices
    training = [rank // devices for rank in range(strategy.training_ranks)]
    used = training[-1] + 1
    dedicated = strategy.nodes_needed(scenario.cluster) > used
    return training + [used + server if dedicated else server % used for server in range(strategy.servers)]


def needed_nodes(scenario: Scenario) -> int:
    """How many of the cluster's nodes have ranks."""
    return max(nodes_of_ranks(scenario)) + 1


def here(ranks: int) -> Sequence[Host]:
    """All ranks on this machine."""
    return [Host()] * ranks
