"""A layer's costs, what every model family gives, and how layers are cut into pipeline stages."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import FieldError
from simulator.spec import Spec


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, the unit in which models are timed and cut.

    name: unique within the model.
    signature: equal for layers that cost the same; the key under which a measured time is found.
    forward_flops: FLOPs of the forward pass for one sample (a multiply-add counts as two).
    tensors: elements of each parameter tensor, in order of registration; gradient buckets are filled with these.
    output_elements: elements of the activation handed to the next layer, for one sample.
    glued: it always shares a stage with its neighbour (embeddings, stems and heads are not cut off on their own).
    """

    name: str
    signature: str
    forward_flops: float
    tensors: tuple[int, ...]
    output_elements: int
    glued: bool = False

    @property
    def parameters(self) -> int:
        return sum(self.tensors)


class ModelSpec(Spec, ABC):
    """A model as users describe it. Subclasses add fields, a `kind` and `build_layers()`."""

    name: str = ""
    description: str = ""

    @abstractmethod
    def build_layers(self) -> list[Layer]:
        """The model's layers in forward order."""

    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.build_layers())


def cut_into_stages(layers: Sequence[Layer], stages: int) -> list[range]:
    """Contiguous layer ranges, one per stage, with block counts that differ by at most one (the first stages get more).

    Leading and trailing glued layers go with the first and the last stage. Raises FieldError for more stages than blocks.
    """
    first, last = 0, len(layers)
    while first < last and layers[first].glued:
        first += 1
    while last > first and layers[last - 1].glued:
        last -= 1
    blocks = last - first
    if not 1 <= stages <= blocks:
        raise FieldError(("strategy", "stages"), f"{stages} stages for {blocks} layers; give at most {blocks}")
    each, extra = divmod(blocks, stages)
    bounds = [first + stage * each + min(stage, extra) for stage in range(stages + 1)]
    bounds[0], bounds[-1] = 0, len(layers)
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
