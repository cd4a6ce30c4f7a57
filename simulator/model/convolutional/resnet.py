"""ResNet (arXiv 1512.03385)."""

from __future__ import annotations

from typing import Final, Literal

from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Convnet,
    Step,
    adaptive_average_pool,
    batch_norm,
    chain,
    conv_norm_relu,
    convolution,
    identity,
    linear,
    loss,
    max_pool,
    relu,
    residual,
)

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
