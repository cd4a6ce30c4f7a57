"""Models to train: lists of layers with FLOPs, parameters and activations.

A new family is a pydantic class derived from `ModelSpec` in a module of its own, added to `AnyModel` here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from scaleproof.simulator.model.captured import CapturedModel
from scaleproof.simulator.model.convolutional.alexnet import AlexNet
from scaleproof.simulator.model.convolutional.inception import InceptionV3
from scaleproof.simulator.model.convolutional.resnet import ResNet
from scaleproof.simulator.model.convolutional.vgg import Vgg
from scaleproof.simulator.model.layers import Layer, ModelSpec, cut_into_stages
from scaleproof.simulator.model.mlp import Mlp
from scaleproof.simulator.model.recommender.dlrm import Dlrm
from scaleproof.simulator.model.recommender.hstu import Hstu
from scaleproof.simulator.model.recorded import RecordedModel
from scaleproof.simulator.model.recurrent_network import RecurrentNetwork
from scaleproof.simulator.model.siamese import Siamese
from scaleproof.simulator.model.traced import Traced
from scaleproof.simulator.model.transformer.decoder import Gpt, Llama
from scaleproof.simulator.model.transformer.encoders import T5, Bert
from scaleproof.simulator.model.transformer.vision_language import VisionLanguage

AnyModel = Annotated[
    Gpt
    | Llama
    | VisionLanguage
    | Bert
    | T5
    | Mlp
    | ResNet
    | Vgg
    | AlexNet
    | InceptionV3
    | RecurrentNetwork
    | Siamese
    | Dlrm
    | Hstu
    | Traced
    | RecordedModel
    | CapturedModel,
    Field(discriminator="kind"),
]

__all__ = [
    "T5",
    "AlexNet",
    "AnyModel",
    "Bert",
    "CapturedModel",
    "Dlrm",
    "Gpt",
    "Hstu",
    "InceptionV3",
    "Layer",
    "Llama",
    "Mlp",
    "ModelSpec",
    "RecordedModel",
    "RecurrentNetwork",
    "ResNet",
    "Siamese",
    "Traced",
    "Vgg",
    "VisionLanguage",
    "cut_into_stages",
]
