"""Components: how many of each there are that can fail, on the nodes that a job takes."""

from __future__ import annotations

from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.topology import Dragonfly, FatTree, Graph, LeafSpine, RailOptimised, Switch
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.scenario.schema import Scenario


def counts(scenario: Scenario) -> dict[str, int]:
    """How many of each component the scenario's job depends on, by name."""
    cluster, strategy = scenario.cluster, scenario.strategy
    nodes = strategy.nodes_needed(cluster)
    return {
        "gpu": 0 if cluster.node.cores is not None else strategy.training_ranks,
        "host": nodes,
        "nic": nodes * cluster.node.cards if nodes > 1 else 0,
        "switch": _switches(cluster.network, nodes, cluster.node.cards),
        "job": 1,
    }


def check(scenario: Scenario, found: dict[str, int]) -> None:
    """Raises FieldError where a component fails of which there are none."""
    assert scenario.reliability is not None
    why = {
        "gpu": "the cluster computes on its hosts' cores; give host in its place",
        "nic": "the job is on one node; leave it out",
        "switch": "there are no switches between the job's nodes; leave it out",
    }
    for name, seconds in scenario.reliability.mtbf.by_component().items():
        if seconds is not None and found[name] == 0:
            raise FieldError(("reliability", "mtbf", name), why[name])


def _switches(network: Link | None, nodes: int, cards: int) -> int:
    """Switches that join so many nodes; those of upper levels all, since messages of every job may pass each."""
    if network is None or nodes == 1:
        return 0
    match network.topology:
        case Switch():
            return 1
        case LeafSpine() as tree:
            return -(-nodes // tree.per_leaf) + tree.spines
        case FatTree() as tree:
            leaves = -(-nodes // tree.per_leaf)
            pods = -(-leaves // tree.leaves_per_pod)
            return leaves + pods * tree.spines_per_pod + (tree.cores if pods > 1 else 0)
        case RailOptimised() as rails:
            return -(-nodes // rails.nodes_per_group) * cards + rails.spines
        case Dragonfly() as routers:
            return -(-nodes // routers.per_router)
        case Graph() as graph:
            return len({vertex for link in graph.links for vertex in link.between if isinstance(vertex, str)})
        case _:
            return 0
