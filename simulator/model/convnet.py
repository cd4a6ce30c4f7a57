"""Convolutional networks: ResNet with bottleneck blocks."""

from __future__ import annotations

from typing import Final, Literal

from simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from simulator.model.operators import Convolution, Matmul
from simulator.spec import Width

# Blocks per group, arXiv 1512.03385 table 1.
_BLOCKS: Final = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EXPANSION: Final = 4


class ResNet(ModelSpec):
    """ResNet-50/101/152 v1.5: the stride is on the 3×3 convolution, as torchvision and tf_cnn_benchmarks have it."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[50, 101, 152] = 50
    image: Width = 224
    classes: Width = 1000

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Stem, bottleneck blocks in four groups, head."""
        refuse_to_shard(self.kind, shard)
        side = _halved(_halved(self.image))
        layers = [self._stem()]
        channels = 64
        for group, count in enumerate(_BLOCKS[self.depth]):
            width = 64 * 2**group
            for index in range(count):
                stride = 2 if group > 0 and index == 0 else 1
                layers.append(_bottleneck(f"group{group}.block{index}", channels, width, side, stride))
                side = _halved(side) if stride == 2 else side
                channels = width * _EXPANSION
        head = Layer(
            "head",
            f"resnet.head({channels}x{self.classes})",
            (Matmul("linear", 1, self.classes, channels),),
            (channels * self.classes, self.classes),
            self.classes,
            glued=True,
        )
        return [*layers, head]

    def _stem(self) -> Layer:
        """7×7 convolution of stride 2 to 64 channels, batch norm, 3×3 max-pool of stride 2."""
        side = _halved(self.image)
        output = 64 * _halved(side) ** 2
        return Layer(
            "stem", f"resnet.stem({self.image})", (_conv(3, 64, 7, 2 * side, side),), (3 * 64 * 49, 64, 64), output, glued=True
        )


def _halved(side: int) -> int:
    """Output side of a stride-2 convolution or pool with 'same' padding."""
    return (side + 1) // 2


def _conv(inputs: int, outputs: int, kernel: int, side: int, out_side: int) -> Convolution:
    return Convolution("convolution", inputs, outputs, (kernel, kernel), out_side * out_side, inputs * side * side)


def _bottleneck(name: str, inputs: int, width: int, side: int, stride: int) -> Layer:
    """1×1 reduce, 3×3 (with the stride), 1×1 expand; a 1×1 projection on the shortcut where shapes change."""
    out_side = _halved(side) if stride == 2 else side
    outputs = width * _EXPANSION
    operators = [
        _conv(inputs, width, 1, side, side),
        _conv(width, width, 3, side, out_side),
        _conv(width, outputs, 1, out_side, out_side),
    ]
    tensors = [inputs * width, width, width, width * width * 9, width, width, width * outputs, outputs, outputs]
    if stride == 2 or inputs != outputs:
        operators.append(_conv(inputs, outputs, 1, side, out_side))
        tensors += [inputs * outputs, outputs, outputs]
    signature = f"resnet.bottleneck({inputs}->{width},side={side},stride={stride})"
    return Layer(name, signature, tuple(operators), tuple(tensors), outputs * out_side * out_side)
