"""Convolutional networks that are a chain of layers: ResNet, VGG, AlexNet."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Literal, NamedTuple

from pydantic import Field

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Step,
    adaptive_average_pool,
    batch_norm,
    chain,
    conv_norm_relu,
    convolution,
    dropout,
    identity,
    layers_of,
    linear,
    loss,
    max_pool,
    relu,
    residual,
)
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard


class Convnet(ModelSpec):
    """A classifier of square images with three channels."""

    image: Width = 224
    classes: Width = 1000
    dropout: bool = Field(True, description="whether there is dropout before linear layers, if the network has any")

    @property
    def dropout_step(self) -> Step:
        """Dropout, or nothing without it."""
        return dropout if self.dropout else identity

    @property
    def option(self) -> str:
        """What the labels of layers say of missing dropout."""
        return "" if self.dropout else ",dropout=False"

    @abstractmethod
    def blocks(self) -> list[Block]:
        """The network's blocks in forward order."""

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers of the blocks in order. Raises FieldError if `shard` divides them."""
        refuse_to_shard(type(self).model_fields["kind"].default, shard)
        return layers_of(self.blocks(), 3, self.image)


# Blocks per group, arXiv 1512.03385, table 1.
_RESNET_BLOCKS: Final = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EXPANSION: Final = 4


class ResNet(Convnet):
    """ResNet-50/101/152 v1.5: the stride is on the 3×3 convolution, as torchvision and tf_cnn_benchmarks have it."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[50, 101, 152] = 50

    def blocks(self) -> list[Block]:
        """Stem, bottleneck blocks in four groups, head."""
        blocks = [
            Block("stem", "resnet.stem", chain(conv_norm_relu(64, 7, stride=2), max_pool(3, 2, padding=1)), pinned_to_end=True)
        ]
        for group, count in enumerate(_RESNET_BLOCKS[self.depth]):
            for index in range(count):
                width, stride = 64 * 2**group, 2 if group > 0 and index == 0 else 1
                label = f"resnet.bottleneck(width={width},stride={stride})"
                blocks.append(Block(f"group{group}.block{index}", label, _bottleneck(width, stride, projected=index == 0)))
        head = chain(adaptive_average_pool(1), linear(self.classes), loss)
        return [*blocks, Block("head", f"resnet.head({self.classes})", head, pinned_to_end=True)]


def _bottleneck(width: int, stride: int, projected: bool) -> Step:
    """A bottleneck block: 1×1 reduce, 3×3 with the stride, 1×1 expand; a 1×1 projection on the shortcut if the shape
    changes."""
    outputs = width * _EXPANSION
    body = chain(conv_norm_relu(width, 1), conv_norm_relu(width, 3, stride), convolution(outputs, 1), batch_norm)
    shortcut = chain(convolution(outputs, 1, stride), batch_norm) if projected else identity
    return chain(residual(body, shortcut), relu)


# 3×3 convolutions before each pool, arXiv 1409.1556, table 1 (D and E).
VGG_CONVOLUTIONS: Final = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class Vgg(Convnet):
    """VGG-16 or VGG-19 without batch norm; images of other sizes are pooled to 7×7 before the linear layers (torchvision)."""

    kind: Literal["vgg"] = "vgg"
    depth: Literal[16, 19] = 16

    def blocks(self) -> list[Block]:
        """Convolutions, each with the ReLU and the pool after it, then the classifier."""
        blocks = []
        for group, count in enumerate(VGG_CONVOLUTIONS[self.depth]):
            outputs = min(64 * 2**group, 512)
            steps = chain(convolution(outputs, 3, bias=True), relu)
            for index in range(count - 1):
                blocks.append(Block(f"group{group}.conv{index}", f"vgg.convolution({outputs})", steps))
            last = chain(steps, max_pool(2, 2))
            blocks.append(Block(f"group{group}.conv{count - 1}", f"vgg.convolution({outputs},pool)", last))
        hidden = chain(linear(4096), relu, self.dropout_step)
        return [
            *blocks,
            Block("linear0", f"vgg.linear(4096{self.option})", chain(adaptive_average_pool(7), hidden)),
            Block("linear1", f"vgg.linear(4096{self.option})", hidden),
            Block("head", f"vgg.head({self.classes})", chain(linear(self.classes), loss)),
        ]


class AlexNetConvolution(NamedTuple):
    """A convolution of an AlexNet. pooled: whether a max-pool follows it."""

    outputs: int
    kernel: int
    stride: int
    padding: int
    groups: int
    pooled: bool


class AlexNet(Convnet):
    """AlexNet on one device (arXiv 1404.5997), or the original with its convolutions in two groups.

    grouped: the network of "ImageNet Classification with Deep Convolutional Neural Networks" (2012), whose second, fourth and
    fifth convolutions have two groups, without its local response normalisation.
    """

    kind: Literal["alexnet"] = "alexnet"
    grouped: bool = False

    def convolutions(self) -> list[AlexNetConvolution]:
        """The network's convolutions in forward order."""
        widths = (96, 256, 384, 384, 256) if self.grouped else (64, 192, 384, 256, 256)
        windows = ((11, 4, 2, 1), (5, 1, 2, 2), (3, 1, 1, 1), (3, 1, 1, 2), (3, 1, 1, 2))
        return [
            AlexNetConvolution(outputs, kernel, stride, padding, grouped if self.grouped else 1, index in (0, 1, 4))
            for index, (outputs, (kernel, stride, padding, grouped)) in enumerate(zip(widths, windows, strict=True))
        ]

    def blocks(self) -> list[Block]:
        """Five convolutions, three linear layers."""
        blocks = []
        for index, (outputs, kernel, stride, padding, groups, pooled) in enumerate(self.convolutions()):
            steps = chain(convolution(outputs, kernel, stride, padding, groups, bias=True), relu)
            label = f"alexnet.convolution({outputs},groups={groups}{',pool' if pooled else ''})"
            blocks.append(Block(f"conv{index}", label, chain(steps, max_pool(3, 2)) if pooled else steps))
        hidden = chain(self.dropout_step, linear(4096), relu)
        return [
            *blocks,
            Block("linear0", f"alexnet.linear(4096{self.option})", chain(adaptive_average_pool(6), hidden)),
            Block("linear1", f"alexnet.linear(4096{self.option})", hidden),
            Block("head", f"alexnet.head({self.classes})", chain(linear(self.classes), loss)),
        ]
