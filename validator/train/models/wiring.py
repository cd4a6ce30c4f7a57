"""What numbered layers read from one another, and weights that two layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.model.layers import Layer, inputs_of

# The layer number of input data, whose outputs are the tensors of a batch.
DATA: Final = -1


class Wire(NamedTuple):
    """An output of a layer that another layer reads; of layer `DATA`, a tensor of the batch."""

    layer: int
    output: int = 0


# By layer, what it reads.
Wiring = Sequence[tuple[Wire, ...]]


class Tie(NamedTuple):
    """A parameter that is the same as one of an earlier layer, its owner."""

    layer: int
    name: str
    owner: int
    owner_name: str


def wiring_of(layers: Sequence[Layer]) -> Wiring:
    """The wiring of layers with one output each; those that read no other layer read a tensor of the batch each."""
    number = {layer.name: place for place, layer in enumerate(layers)}
    result: list[tuple[Wire, ...]] = []
    data = 0
    for names in inputs_of(layers):
        result.append(tuple(Wire(number[name]) for name in names) or (Wire(DATA, data),))
        data += not names
    return result


def outputs_of(wiring: Wiring) -> list[int]:
    """Number of outputs of each layer, at least one."""
    counts = [1] * len(wiring)
    for sources in wiring:
        for wire in sources:
            if wire.layer >= 0:
                counts[wire.layer] = max(counts[wire.layer], wire.output + 1)
    return counts


def crossing(wiring: Wiring, cut: int) -> list[Wire]:
    """The outputs of layers before number `cut` that it or later layers read; of all layers, that of the last one."""
    if cut == len(wiring):
        return [Wire(len(wiring) - 1)]
    read = {wire for sources in wiring[cut:] for wire in sources if 0 <= wire.layer < cut}
    return sorted(read)
