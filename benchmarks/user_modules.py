"""Modules of published packages at sizes that two cores train; each function returns a module, example inputs and its loss.

torchvision: ResNet-50, a vision transformer, and a fully convolutional network with skip connections like a U-Net, which is
written here, since torchvision has none. transformers: a Llama and a BERT by configuration, with random weights.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_IMAGE = 64
_CLASSES = 10
_WORDS = 1000
_SEQUENCE = 64


def without_operators() -> None:
    """Lets torchvision be imported without its compiled operators, which these networks do not use: wheels for GPUs cannot load
    them next to a torch for processors."""
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def resnet50() -> dict[str, Any]:
    """torchvision's ResNet-50 on small images."""
    without_operators()
    from torchvision.models import resnet50

    return _classifier(resnet50(num_classes=_CLASSES), momentum=True)


def vision_transformer() -> dict[str, Any]:
    """torchvision's vision transformer with six layers."""
    without_operators()
    from torchvision.models.vision_transformer import VisionTransformer

    return _classifier(VisionTransformer(_IMAGE, 8, 6, 4, 192, 768, num_classes=_CLASSES))


def unet() -> dict[str, Any]:
    """torchvision's blocks as a U-Net: each step up also reads the image of the same size on the way down."""
    images = torch.randn(4, 3, _IMAGE, _IMAGE)
    labels = torch.randint(_CLASSES, (4, _IMAGE, _IMAGE))
    return {"module": UNet(24), "inputs": images, "targets": labels, "loss": functional.cross_entropy}


def llama() -> tuple[nn.Module, Tensor]:
    """A Llama of `transformers` with grouped heads; it returns its loss."""
    without_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_WORDS,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=_SEQUENCE,
    )
    return WordLoss(LlamaForCausalLM(config)), torch.randint(_WORDS, (4, _SEQUENCE))


def bert() -> tuple[nn.Module, Tensor]:
    """A BERT of `transformers` that predicts words; without dropout, so that it can be verified."""
    without_operators()
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=_WORDS,
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=_SEQUENCE,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return WordLoss(BertForMaskedLM(config)), torch.randint(_WORDS, (4, _SEQUENCE))


class WordLoss(nn.Module):
    """A language model of `transformers` that returns its loss of the words that it reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        """The mean loss of all words."""
        loss: Tensor = self.model(input_ids=words, labels=words).loss
        return loss


class UNet(nn.Module):
    """Three steps down and up. width: channels of the first step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_convolutions(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True))
        self.middle = _convolutions(4 * width, 8 * width)
        self.up = nn.ModuleList(_convolutions(3 * after, after) for after in widths[::-1])
        self.head = nn.Conv2d(width, _CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes of each pixel."""
        kept = []
        for step in self.down:
            x = step(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for step, before in zip(self.up, kept[::-1], strict=True):
            x = step(torch.cat([functional.interpolate(x, scale_factor=2.0), before], 1))
        return self.head(x)  # type: ignore[no-any-return]


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    without_operators()
    from torchvision.ops.misc import Conv2dNormActivation

    return nn.Sequential(Conv2dNormActivation(inputs, outputs), Conv2dNormActivation(outputs, outputs))


def _classifier(module: nn.Module, momentum: bool = False) -> dict[str, Any]:
    """A classifier of images. momentum: whether it brings an optimizer of its own."""
    given: dict[str, Any] = {"module": module, "inputs": torch.randn(4, 3, _IMAGE, _IMAGE)}
    given |= {"targets": torch.randint(_CLASSES, (4,)), "loss": functional.cross_entropy}
    return given | ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)} if momentum else {})
