"""Models as graphs of layers, whose branches can run concurrently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer, inputs_of

if TYPE_CHECKING:
    import networkx

    Graph = networkx.DiGraph[str]


def graph_of(layers: Sequence[Layer]) -> Graph:
    """The graph of layers by name, with an edge to each reader; an edge's `elements` are those of the activation of one
    sample."""
    import networkx

    graph: Graph = networkx.DiGraph()
    by_name = {layer.name: layer for layer in layers}
    for layer, inputs in zip(layers, inputs_of(layers), strict=True):
        graph.add_node(layer.name, layer=layer)
        for name in inputs:
            graph.add_edge(name, layer.name, elements=by_name[name].output_elements)
    return graph


def branches(layers: Sequence[Layer]) -> list[list[list[Layer]]]:
    """The branches of each fork of the model: lists of layers with no path to the layers of another branch of the fork.

    Layers on every path are on no branch. Forks, and the layers of a branch, are in forward order.
    """
    import networkx

    graph = graph_of(layers)
    related = [len(networkx.ancestors(graph, layer.name)) + len(networkx.descendants(graph, layer.name)) for layer in layers]
    trunk = [count == len(layers) - 1 for count in related]
    forked = graph.subgraph(layer.name for layer, passed in zip(layers, trunk, strict=True) if not passed)
    component = {name: number for number, names in enumerate(networkx.weakly_connected_components(forked)) for name in names}
    # branches of one fork follow the same layers of the trunk
    forks: dict[int, dict[int, list[Layer]]] = {}
    for index, layer in enumerate(layers):
        if not trunk[index]:
            fork = forks.setdefault(sum(trunk[:index]), {})
            fork.setdefault(component[layer.name], []).append(layer)
    return [list(fork.values()) for fork in forks.values() if len(fork) > 1]


def place_branches(layers: Sequence[Layer], devices: int) -> list[int]:
    """The device of each layer, from 0. The branches of a fork are on different devices if there are enough.

    Branches with the most FLOPs are placed first, each on the device with the fewest FLOPs; all other layers are on device 0.
    Raises FieldError for fewer than one device.
    """
    if devices < 1:
        raise FieldError(("devices",), f"{devices} devices to place a model on; give at least 1")
    device: dict[str, int] = {}
    for fork in branches(layers):
        load = [(0.0, 0)] * devices
        for branch in sorted(fork, key=_flops, reverse=True):
            chosen = load.index(min(load))
            flops, count = load[chosen]
            load[chosen] = flops + _flops(branch), count + 1
            device |= {layer.name: chosen for layer in branch}
    return [device.get(layer.name, 0) for layer in layers]


def _flops(branch: Sequence[Layer]) -> float:
    return sum(layer.forward_flops + layer.backward_flops for layer in branch)
