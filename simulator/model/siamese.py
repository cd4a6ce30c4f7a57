"""Siamese networks: two towers with shared weights, and a learned distance of their outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from scaleproof.simulator.model.convolutional.alexnet import AlexNet
from scaleproof.simulator.model.convolutional.inception import InceptionV3
from scaleproof.simulator.model.convolutional.resnet import ResNet
from scaleproof.simulator.model.convolutional.vgg import Vgg
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.mlp import Mlp
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation

Tower = Annotated[AlexNet | InceptionV3 | Mlp | ResNet | Vgg, Field(discriminator="kind")]


class Siamese(ModelSpec):
    """Two towers joined by a weighted L1 distance (Koch et al., "Siamese neural networks for one-shot image recognition").

    A sample is a pair of inputs. tower: its outputs (classes) are the embedding, and its own loss is left out. The towers share
    their weights: the left tower's layers have them, the right tower's layers have no parameters.
    """

    kind: Literal["siamese"] = "siamese"
    tower: Tower

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers of the left tower, of the right tower, and the head that reads both. Raises FieldError for any
        sharding."""
        refuse_to_shard(self.kind, shard)
        layers = self.tower.build_layers()
        layers[-1] = _without_loss(layers[-1])
        left, right = _named("left", layers), [replace(layer, tensors=()) for layer in _named("right", layers)]
        return [*left, *right, _distance(layers[-1].output_elements, (left[-1].name, right[-1].name))]


def _named(side: str, layers: list[Layer]) -> list[Layer]:
    """The layers of a tower, none of which is pinned to a stage's end; the first one reads input data."""
    first, *rest = [replace(layer, name=f"{side}.{layer.name}", pinned_to_end=False) for layer in layers]
    return [replace(first, inputs=()), *rest]


def _without_loss(layer: Layer) -> Layer:
    return replace(
        layer,
        signature=f"siamese.embedding({layer.signature})",
        operators=tuple(operator for operator in layer.operators if operator.name != "loss"),
        kept=tuple(kept for kept in layer.kept if kept.name != "probabilities"),
    )


def _distance(width: int, inputs: tuple[str, str]) -> Layer:
    """The head: |left − right|, weighted and summed to one number, and its loss."""
    operators = (
        MemoryBound("difference", 2 * width, width, 2 * width, 2 * width),
        Matmul("linear", 1, 1, width),
        MemoryBound("loss", 1, 1, 2, 1),
    )
    kept = (
        SavedActivation("input", 2 * width, group="input"),
        SavedActivation("difference", 2 * width),
        SavedActivation("probabilities", 1),
    )
    return Layer("head", f"siamese.head({width})", operators, (width, 1), 1, pinned_to_end=True, kept=kept, inputs=inputs)
