"""Number of components of each kind that can fail, on the nodes of a job."""

from __future__ import annotations

from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.topology import Dragonfly, FatTree, Graph, LeafSpine, RailOptimised, Switch
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.scenario.schema import Scenario


def counts(scenario: Scenario) -> dict[str, int]:
    """The number of components that the scenario's job depends on, by kind."""
    cluster, strategy = scenario.cluster, scenario.strategy
    nodes = strategy.nodes_needed(cluster)
    return {
        "gpu": 0 if cluster.node.cores is not None else strategy.training_ranks,
        "host": nodes,
        "nic": nodes * cluster.node.cards if nodes > 1 else 0,
        "switch": _switches(cluster.network, nodes, cluster.node.cards),
        "job": 1,
    }


def check(scenario: Scenario, numbers: dict[str, int]) -> None:
    """Raises FieldError for a failure rate of a component that the job does not have. numbers: as from `counts`."""
    assert scenario.reliability is not None
    why = {
        "gpu": "the cluster computes on its hosts' cores; give host in its place",
        "nic": "the job runs on one node; leave it out",
        "switch": "there are no switches between the job's nodes; leave it out",
    }
    for name, seconds in scenario.reliability.mtbf_s().items():
        if seconds is not None and numbers[name] == 0:
            raise FieldError(("reliability", "mtbf", name), why[name])


def _switches(network: Link | None, nodes: int, cards: int) -> int:
    """Number of switches that connect this many nodes, and all switches of upper levels, which any job's messages may cross."""
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
