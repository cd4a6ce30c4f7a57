"""Parameters and forward FLOPs of models by name next to published figures, which scenarios/models/published_sizes.csv holds.

Sources count the work of a forward pass in different ways; a figure is compared with ours counted in the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from scaleproof.simulator.common import catalog
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, MemoryBound
from scaleproof.simulator.model.recorded import RecordedModel
from scaleproof.simulator.published.tables import read_table
from scaleproof.simulator.scenario.read import load_model


class _Counting(NamedTuple):
    """How a source counts: operations of a multiply-add, products of activations or not, operations of elements of norms."""

    multiply_add: int
    attention: bool = True
    elements: Mapping[str, int] = MappingProxyType({})


# fvcore's jit_handles.py counts norms, too, with a rough number of operations for each element.
_COUNTINGS: Final = {
    "multiply-adds": _Counting(1),
    "FLOPs": _Counting(2),
    "multiply-adds of weights": _Counting(1, attention=False),
    "fvcore": _Counting(
        1, elements={"native_batch_norm": 2, "native_layer_norm": 5, "native_group_norm": 5, "mean": 1}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """Our figure and a published one. published: as the source prints it, or blank. scale: FLOPs of one unit of it."""

    ours: float
    published: str
    source: str
    scale: int = 1

    @property
    def error(self) -> float | None:
        """Our figure's relative difference from the published one."""
        return self.ours / float(self.published) - 1 if self.published else None

    @property
    def agrees(self) -> bool:
        """Whether it differs by at most 1 %, or by what the source's digits leave open."""
        digits = len(self.published.partition(".")[2])
        return self.error is None or abs(self.error) <= max(0.01, 0.5 * 10**-digits / float(self.published))


@dataclass(frozen=True)
class ModelSize:
    """A model's parameters (1e6) and forward work (1e9, counted as the source does).

    page: of the guide that shows it; blank for modules of timm. image: pixels of a side, or blank for the model's own.
    """

    page: str
    model: str
    image: str
    parameters: Figure
    forward: Figure
    note: str


@functools.cache
def model_sizes() -> tuple[ModelSize, ...]:
    """All models of the table, in its order."""
    return tuple(_size(row) for row in read_table(catalog.ROOT / "models" / "published_sizes.csv")[1])


def _size(row: Mapping[str, str]) -> ModelSize:
    layers = _layers(row["model"], row["image"])
    counting = _COUNTINGS[row["forward_counts"] or "FLOPs"]
    parameters = Figure(sum(layer.full_parameters for layer in layers) / 1e6, row["parameters_M"], row["parameters_source"])
    source = row["forward_source"] or row["parameters_source"]
    forward = Figure(_forward(layers, counting) / 1e9, row["forward_G"], source, 2 // counting.multiply_add)
    return ModelSize(row["page"], row["model"], row["image"], parameters, forward, row["note"])


def _layers(name: str, image: str) -> Sequence[Layer]:
    changes = {"image": int(image)} if image else {}
    is_named = name in catalog.names("models")
    return (load_model(name, **changes) if is_named else RecordedModel(source=name, **changes)).build_layers()


def _forward(layers: Sequence[Layer], counting: _Counting) -> float:
    """Operations of the forward pass of one sample, as a source counts them."""
    total = 0.0
    for operator in (one for layer in layers for one in layer.operators):
        if counting.attention or not isinstance(operator, Attention):
            total += operator.forward_flops / 2 * counting.multiply_add
        if isinstance(operator, MemoryBound):
            elements = operator.read if operator.name == "mean" else operator.written
            total += counting.elements.get(operator.name, 0) * elements
    return total
