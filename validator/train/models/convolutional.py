"""Torch modules of VGG, AlexNet and Inception v3, with the same tensors as the simulator's layers in the same order."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model import AlexNet, InceptionV3, Vgg
from scaleproof.simulator.model.convolutional.vgg import VGG_CONVOLUTIONS
from scaleproof.validator.train.models.resnet import unit
from scaleproof.validator.train.models.transformer import cross_entropy
from scaleproof.validator.train.models.wiring import Wire, Wiring, wiring_of

_HIDDEN: Final = 4096
_DROPOUT: Final = 0.5
# Number of the layer with the auxiliary classifier.
_REDUCTION: Final = 9
# Weight of the auxiliary classifier's loss (arXiv 1409.4842, section 5).
_AUXILIARY: Final = 0.3


def vgg_layer(spec: Vgg, index: int) -> nn.Module:
    """Layer number `index` of a VGG, as in `spec.build_layers()`."""
    counts = VGG_CONVOLUTIONS[spec.depth]
    places = [(group, place) for group, count in enumerate(counts) for place in range(count)]
    drop = _DROPOUT if spec.dropout else 0.0
    if index < len(places):
        group, place = places[index]
        outputs = min(64 * 2**group, 512)
        inputs = outputs if place else 3 if group == 0 else min(64 * 2 ** (group - 1), 512)
        pool = [nn.MaxPool2d(2, 2)] if place == counts[group] - 1 else []
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), *pool)
    hidden = (nn.ReLU(inplace=True), nn.Dropout(drop))
    number = index - len(places)
    if number == 0:
        return nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, _HIDDEN), *hidden)
    return nn.Sequential(nn.Linear(_HIDDEN, _HIDDEN), *hidden) if number == 1 else nn.Linear(_HIDDEN, spec.classes)


def alexnet_layer(spec: AlexNet, index: int) -> nn.Module:
    """Layer number `index` of an AlexNet, as in `spec.build_layers()`."""
    convolutions = spec.convolutions()
    drop = _DROPOUT if spec.dropout else 0.0
    if index < len(convolutions):
        inputs = 3 if index == 0 else convolutions[index - 1].outputs
        outputs, kernel, stride, padding, groups, pooled = convolutions[index]
        pool = [nn.MaxPool2d(3, 2)] if pooled else []
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups)
        return nn.Sequential(convolution, nn.ReLU(inplace=True), *pool)
    number = index - len(convolutions)
    if number == 0:
        flat = (nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(drop))
        return nn.Sequential(*flat, nn.Linear(convolutions[-1].outputs * 36, _HIDDEN), nn.ReLU(inplace=True))
    if number == 1:
        return nn.Sequential(nn.Dropout(drop), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(inplace=True))
    return nn.Linear(_HIDDEN, spec.classes)


def inception_layer(spec: InceptionV3, index: int) -> nn.Module:
    """Layer number `index` of an Inception v3, as in `spec.build_layers()`."""
    blocks: list[nn.Module] = [
        _stem(), _a(192, 32), _a(256, 64), _a(288, 64), _b(288), _c(128), _c(160), _c(160), _c(192),
        _reduction(spec), _e(1280), _e(2048), InceptionHead(spec),
    ]  # fmt: skip
    return blocks[index]


def inception_wiring(spec: InceptionV3) -> Wiring:
    """A chain in which the head also reads the auxiliary logits of the block that computes them."""
    chain = list(wiring_of(spec.build_layers()))
    return [*chain[:-1], (*chain[-1], Wire(_REDUCTION, 1))] if spec.auxiliary else chain


def inception_loss(outputs: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Cross entropy, plus a share of that of the auxiliary classifier."""
    if isinstance(outputs, Tensor):
        return cross_entropy(outputs, targets)
    return cross_entropy(outputs[0], targets) + _AUXILIARY * cross_entropy(outputs[1], targets)


class Branches(nn.Module):
    """Branches that read the same image and whose channels are concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """The concatenated outputs."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class WithAuxiliary(nn.Module):
    """A block with the auxiliary classifier on its input: returns its output and the auxiliary logits."""

    def __init__(self, classes: int, block: nn.Module) -> None:
        super().__init__()
        units = (*unit(768, 128, 1), *unit(128, 768, 5, padding=0))
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, classes))
        self.auxiliary = nn.Sequential(nn.AvgPool2d(5, 3), *units, *pooled)
        self.block = block

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output, and the auxiliary logits."""
        return self.block(x), self.auxiliary(x)


class InceptionHead(nn.Module):
    """Pool, dropout and the classifier; passes the auxiliary logits on to the loss."""

    def __init__(self, spec: InceptionV3) -> None:
        super().__init__()
        self.dropout = nn.Dropout(_DROPOUT if spec.dropout else 0.0)
        self.linear = nn.Linear(2048, spec.classes)

    def forward(self, x: Tensor, *auxiliary: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The logits, with the auxiliary ones if there are any."""
        logits = cast(Tensor, self.linear(self.dropout(functional.adaptive_avg_pool2d(x, 1).flatten(1))))
        return (logits, *auxiliary) if auxiliary else logits


def _stem() -> nn.Module:
    first = (*unit(3, 32, 3, 2, padding=0), *unit(32, 32, 3, padding=0), *unit(32, 64, 3), nn.MaxPool2d(3, 2))
    return nn.Sequential(*first, *unit(64, 80, 1), *unit(80, 192, 3, padding=0), nn.MaxPool2d(3, 2))


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), *unit(inputs, outputs, 1))


def _chain(inputs: int, *units: tuple[Any, ...]) -> nn.Module:
    """Convolutions, norms and ReLUs, each with outputs and kernel, or also with stride and padding."""
    modules: list[nn.Module] = []
    for outputs, *rest in units:
        modules += unit(inputs, outputs, *rest)
        inputs = outputs
    return nn.Sequential(*modules)


def _a(inputs: int, pooled: int) -> nn.Module:
    double = _chain(inputs, (64, 1), (96, 3), (96, 3))
    return Branches(_chain(inputs, (64, 1)), _chain(inputs, (48, 1), (64, 5)), double, _pooled(inputs, pooled))


def _b(inputs: int) -> nn.Module:
    double = _chain(inputs, (64, 1), (96, 3), (96, 3, 2, 0))
    return Branches(_chain(inputs, (384, 3, 2, 0)), double, nn.MaxPool2d(3, 2))


def _c(width: int) -> nn.Module:
    across, down = (1, 7), (7, 1)
    once = _chain(768, (width, 1), (width, across), (192, down))
    twice = _chain(768, (width, 1), (width, down), (width, across), (width, down), (192, across))
    return Branches(_chain(768, (192, 1)), once, twice, _pooled(768, 192))


def _reduction(spec: InceptionV3) -> nn.Module:
    seven = _chain(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, 0))
    block = Branches(_chain(768, (192, 1), (320, 3, 2, 0)), seven, nn.MaxPool2d(3, 2))
    return WithAuxiliary(spec.classes, block) if spec.auxiliary else block


def _e(inputs: int) -> nn.Module:
    def wide(channels: int) -> nn.Module:
        return Branches(_chain(channels, (384, (1, 3))), _chain(channels, (384, (3, 1))))

    once = nn.Sequential(_chain(inputs, (384, 1)), wide(384))
    twice = nn.Sequential(_chain(inputs, (448, 1), (384, 3)), wide(384))
    return Branches(_chain(inputs, (320, 1)), once, twice, _pooled(inputs, 192))
