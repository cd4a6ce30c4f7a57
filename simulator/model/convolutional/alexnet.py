"""AlexNet (arXiv 1404.5997)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Convnet,
    adaptive_average_pool,
    chain,
    convolution,
    linear,
    loss,
    max_pool,
    relu,
)


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
