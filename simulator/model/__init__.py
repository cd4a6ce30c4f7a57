"""What is trained: models as lists of layers with FLOPs, parameters and activations.

A new family is a module with a pydantic class derived from `ModelSpec`, added to `AnyModel` here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.model.convnet import ResNet
from simulator.model.layers import Layer, ModelSpec, cut_into_stages
from simulator.model.mlp import Mlp
from simulator.model.transformer import Gpt

AnyModel = Annotated[Gpt | Mlp | ResNet, Field(discriminator="kind")]

__all__ = ["AnyModel", "Gpt", "Layer", "Mlp", "ModelSpec", "ResNet", "cut_into_stages"]
