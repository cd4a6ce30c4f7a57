"""Multi-layer perceptrons: linear layers with ReLU between them."""

from __future__ import annotations

import itertools
from typing import Literal

from simulator.model.layers import Layer, ModelSpec
from simulator.spec import Depth, Width


class Mlp(ModelSpec):
    """`layers` linear layers: inputs → hidden → … → hidden → outputs (classes)."""

    kind: Literal["mlp"] = "mlp"
    layers: Depth
    inputs: Width
    hidden: Width
    outputs: Width

    def widths(self) -> list[int]:
        """Widths between layers: layers + 1 numbers, input first."""
        return [self.inputs, *[self.hidden] * (self.layers - 1), self.outputs]

    def build_layers(self) -> list[Layer]:
        widths = self.widths()
        return [
            Layer(f"linear{i}", f"mlp.linear({a}x{b}{_last(i, self)})", 2.0 * a * b, (a * b, b), b)
            for i, (a, b) in enumerate(itertools.pairwise(widths))
        ]


def _last(index: int, mlp: Mlp) -> str:
    """The first layer computes no input gradient and the last adds the loss: both cost differently."""
    first, last = index == 0, index == mlp.layers - 1
    return (",first" if first else "") + (",last" if last else "")
