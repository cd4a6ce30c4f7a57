"""Multi-layer perceptrons: linear layers with ReLU between them."""

from __future__ import annotations

import itertools
from typing import Literal

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation


class Mlp(ModelSpec):
    """`layers` linear layers: inputs → hidden → … → hidden → outputs (classes)."""

    kind: Literal["mlp"] = "mlp"
    layers: Depth
    inputs: Width
    hidden: Width
    outputs: Width

    def widths(self) -> list[int]:
        """Widths of the input and of each layer's output: layers + 1 numbers."""
        return [self.inputs, *[self.hidden] * (self.layers - 1), self.outputs]

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """One linear layer for each pair of consecutive widths. Raises FieldError if `shard` divides them."""
        refuse_to_shard(self.kind, shard)
        widths = self.widths()
        return [_linear(i, a, b, self) for i, (a, b) in enumerate(itertools.pairwise(widths))]


def _linear(index: int, inputs: int, outputs: int, mlp: Mlp) -> Layer:
    """A linear layer. The first one has no input gradient and the last one includes the loss, so their costs differ."""
    first, last = index == 0, index == mlp.layers - 1
    role = (",first" if first else "") + (",last" if last else "")
    # a ReLU keeps its output, which is the next layer's input; the loss keeps the probabilities
    after = MemoryBound("loss" if last else "relu", outputs, outputs, 2 * outputs, outputs)
    return Layer(
        f"linear{index}",
        f"mlp.linear({inputs}x{outputs}{role})",
        (Matmul("linear", 1, outputs, inputs, input_gradient=not first), after),
        (inputs * outputs, outputs),
        outputs,
        kept=(SavedActivation("input", inputs, group="input"), *((SavedActivation("probabilities", outputs),) if last else ())),
    )
