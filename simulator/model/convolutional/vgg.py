"""VGG (arXiv 1409.1556)."""

from __future__ import annotations

from typing import Final, Literal

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
