"""A job of ranks: the hosts on which they run, and the temporary folder through which launcher and ranks exchange files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.ranks import ranks_on_nodes

LOOPBACK: Final = "lo" if sys.platform.startswith("linux") else "lo0"


@dataclass(frozen=True)
class Host:
    """The host of a rank. namespace: network namespace to join, None for this machine's. interface: on which the rank listens.
    cores: cores of the machine that it may use, all if None."""

    namespace: Path | None = None
    interface: str = LOOPBACK
    cores: tuple[int, ...] | None = None


def nodes_of_ranks(scenario: Scenario) -> list[int]:
    """The node of each rank, as in the simulator."""
    strategy, cluster = scenario.strategy, scenario.cluster
    if not strategy.servers:
        return [cluster.place(rank)[0] for rank in range(strategy.ranks)]
    dedicated = strategy.nodes_needed(cluster) > -(-strategy.training_ranks // cluster.node.devices)
    nodes = ranks_on_nodes(strategy.training_ranks, strategy.servers, cluster.node.devices, dedicated)
    node_of = {rank: node for node, ranks in nodes.items() for role in ranks for rank in role}
    return [node_of[rank] for rank in range(strategy.ranks)]


def needed_nodes(scenario: Scenario) -> int:
    """Number of the cluster's nodes that have ranks."""
    return max(nodes_of_ranks(scenario)) + 1


@dataclass(frozen=True)
class JobFolder:
    """Paths of the files in a job's folder."""

    path: Path

    @property
    def job(self) -> Path:
        """Two pickles: settings that a rank needs to start, then the function to run with its arguments."""
        return self.path / "job"

    @property
    def board(self) -> Path:
        """The status board: current activity of each rank."""
        return self.path / "status"

    @property
    def store(self) -> Path:
        """The store by which ranks form a process group."""
        return self.path / "store"

    def result(self, rank: int) -> Path:
        """Result of the rank's function."""
        return self.path / f"result-{rank}.json"

    def error(self, rank: int) -> Path:
        """Error of the rank, if it failed."""
        return self.path / f"error-{rank}.json"

    def log(self, rank: int) -> Path:
        """Output of the rank."""
        return self.path / f"rank-{rank}.log"

    def recorded(self, rank: int) -> Path:
        """Bytes that the rank has recorded while its function ran."""
        return self.path / f"recorded-{rank}"
