"""Models as graphs: what is handed over where a model is cut, and branches that can run at the same time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer

if TYPE_CHECKING:
    import networkx

    Graph = networkx.DiGraph[str]


def inputs_of(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """The names of the layers that each layer reads; none, where it reads data alone."""
    before = [None, *layers[:-1]]
    return [
        layer.inputs if layer.inputs is not None else (previous.name,) if previous else ()
        for previous, layer in zip(before, layers, strict=True)
    ]


def graph_of(layers: Sequence[Layer]) -> Graph:
    """Layers by name, an edge from each to those that read it; `elements` of an edge are handed over for one sample."""
    import networkx

    graph: Graph = networkx.DiGraph()
    by_name = {layer.name: layer for layer in layers}
    for layer, inputs in zip(layers, inputs_of(layers), strict=True):
        graph.add_node(layer.name, layer=layer)
        for name in inputs:
            graph.add_edge(name, layer.name, elements=by_name[name].output_elements)
    return graph


def crossing_elements(layers: Sequence[Layer], cut: int) -> int:
    """Elements of one sample that layers[:cut] hand to layers[cut:]; what several layers read is handed over once."""
    return handed_on(layers)[cut - 1]


def handed_on(layers: Sequence[Layer]) -> list[int]:
    """For each layer the elements of one sample that it, and those before it, hand to layers behind it."""
    number = {layer.name: i for i, layer in enumerate(layers)}
    last_reader = list(range(len(layers)))
    for reader, inputs in enumerate(inputs_of(layers)):
        for name in inputs:
            last_reader[number[name]] = max(last_reader[number[name]], reader)
    change = [0] * (len(layers) + 1)
    for i, layer in enumerate(layers):
        change[i] += layer.output_elements
        change[last_reader[i]] -= layer.output_elements
    return list(itertools.accumulate(change[:-1]))


def owners_of(layers: Sequence[Layer]) -> dict[int, int]:
    """For each layer that has the weights of another, that layer; both by number.

    A layer that has none of its own stands for the layer like it: the first for the first of its kind, and so on.
    """
    owners: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.tensors:
            owners.setdefault(layer.signature, []).append(i)
    found: dict[int, int] = {}
    met: Counter[str] = Counter()
    for i, layer in enumerate(layers):
        if not layer.tensors and layer.signature in owners:
            alike = owners[layer.signature]
            found[i] = alike[met[layer.signature] % len(alike)]
            met[layer.signature] += 1
    return found


def branches(layers: Sequence[Layer]) -> list[list[list[Layer]]]:
    """For each place where the model forks, its branches: layers that no path connects to those of another branch.

    What every path passes is on no branch, nor are paths that exchange anything on their way. Both lists are in forward order.
    """
    import networkx

    graph = graph_of(layers)
    related = [len(networkx.ancestors(graph, layer.name)) + len(networkx.descendants(graph, layer.name)) for layer in layers]
    trunk = [count == len(layers) - 1 for count in related]
    forked = graph.subgraph(layer.name for layer, passed in zip(layers, trunk, strict=True) if not passed)
    component = {name: number for number, names in enumerate(networkx.weakly_connected_components(forked)) for name in names}
    # branches of one fork have the same part of the trunk before them
    forks: dict[int, dict[int, list[Layer]]] = {}
    for index, layer in enumerate(layers):
        if not trunk[index]:
            fork = forks.setdefault(sum(trunk[:index]), {})
            fork.setdefault(component[layer.name], []).append(layer)
    return [list(fork.values()) for fork in forks.values() if len(fork) > 1]


def place_branches(layers: Sequence[Layer], devices: int) -> list[int]:
    """A device, from 0, for each layer, such that branches of a fork are on different devices as long as there are enough.

    Branches with the most FLOPs are placed first, each on the device with the fewest; everything else is on device 0.
    Raises FieldError for less than one device.
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
