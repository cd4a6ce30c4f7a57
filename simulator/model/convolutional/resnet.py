"""ResNet (arXiv 1512.03385)."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

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
_RESNET_BLOCKS: Final = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EXPANSION: Final = 4


class ResNet(Convnet):
    """ResNet-18/34 of basic blocks, and ResNet-50/101/152 v1.5 of bottlenecks: the stride is on the first 3×3 convolution, as
    torchvision and tf_cnn_benchmarks have it."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101, 152] = 50
    small_images: bool = Field(False, description="a stem of one 3×3 convolution without a pool, as for images of CIFAR")

    @property
    def expansion(self) -> int:
        """Output channels of a block over its width."""
        return _EXPANSION if self.depth >= 50 else 1

    def is_projected(self, group: int, index: int) -> bool:
        """Whether a block's input is projected on the shortcut, since its shape changes."""
        return index == 0 and (group > 0 or self.expansion > 1)

    def blocks(self) -> list[Block]:
        """Stem, blocks in four groups, head."""
        pooled = chain(conv_norm_relu(64, 7, stride=2), max_pool(3, 2, padding=1))
        stem, name = (conv_norm_relu(64, 3), "resnet.small_stem") if self.small_images else (pooled, "resnet.stem")
        blocks = [Block("stem", name, stem, pinned_to_end=True)]
        build, kind = (_bottleneck, "bottleneck") if self.expansion > 1 else (_basic, "basic")
        for group, count in enumerate(_RESNET_BLOCKS[self.depth]):
            for index in range(count):
                width, stride = 64 * 2**group, 2 if group > 0 and index == 0 else 1
                label = f"resnet.{kind}(width={width},stride={stride})"
                block = build(width, stride, self.is_projected(group, index))
                blocks.append(Block(f"group{group}.block{index}", label, block))
        head = chain(adaptive_average_pool(1), linear(self.classes), loss)
        return [*blocks, Block("head", f"resnet.head({self.classes})", head, pinned_to_end=True)]


def _basic(width: int, stride: int, projected: bool) -> Step:
    """A basic block: two 3×3 convolutions, the first with the stride; a 1×1 projection on the shortcut if the shape changes."""
    body = chain(conv_norm_relu(width, 3, stride), convolution(width, 3), batch_norm)
    return chain(residual(body, _shortcut(width, stride, projected)), relu)


def _shortcut(outputs: int, stride: int, projected: bool) -> Step:
    return chain(convolution(outputs, 1, stride), batch_norm) if projected else identity


def _bottleneck(width: int, stride: int, projected: bool) -> Step:
    """A bottleneck block: 1×1 reduce, 3×3 with the stride, 1×1 expand; a 1×1 projection on the shortcut if the shape
    changes."""
    outputs = width * _EXPANSION
    body = chain(conv_norm_relu(width, 1), conv_norm_relu(width, 3, stride), convolution(outputs, 1), batch_norm)
    return chain(residual(body, _shortcut(outputs, stride, projected)), relu)
