"""What is trained: models as lists of layers with FLOPs, parameters and activations.

A new family is a module with a pydantic class derived from `ModelSpec`, added to `AnyModel` here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.model.convnet import AlexNet, ResNet, Vgg
from simulator.model.encoders import T5, Bert
from simulator.model.inception import InceptionV3
from simulator.model.layers import Layer, ModelSpec, cut_into_stages
from simulator.model.mlp import Mlp
from simulator.model.siamese import Siamese
from simulator.model.tracing import Traced
from simulator.model.transformer import Gpt, Llama

AnyModel = Annotated[
    Gpt | Llama | Bert | T5 | Mlp | ResNet | Vgg | AlexNet | InceptionV3 | Siamese | Traced, Field(discriminator="kind")
]

__all__ = [
    "T5",
    "AlexNet",
    "AnyModel",
    "Bert",
    "Gpt",
    "InceptionV3",
    "Layer",
    "Llama",
    "Mlp",
    "ModelSpec",
    "ResNet",
    "Siamese",
    "Traced",
    "Vgg",
    "cut_into_stages",
]
