"""Torch modules of the simulator's ResNet: stem, basic or bottleneck blocks, head, with the same tensors in the same order."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from scaleproof.simulator.model import ResNet


def layer(spec: ResNet, index: int) -> nn.Module:
    """Layer number `index` of `spec`, as in `spec.build_layers()`.

    Batch norms use the statistics of the worker's own batch and keep no running ones. So data parallelism does not equal one
    process that trains on the whole batch: the workers' gradients are of networks with different statistics. Workers stay
    identical to one another.
    """
    names = [layer_spec.name for layer_spec in spec.build_layers()]
    if index == 0 and spec.small_images:
        return nn.Sequential(*unit(3, 64, 3))
    if index == 0:
        return nn.Sequential(*unit(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, padding=1))
    if index == len(names) - 1:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512 * spec.expansion, spec.classes))
    group, first = _group_of(names[index])
    width, stride = 64 * 2**group, 2 if group > 0 and first else 1
    inputs = 64 if index == 1 else width * spec.expansion // (2 if group > 0 and first else 1)
    return ResidualBlock(inputs, width, stride, spec.expansion, spec.is_projected(group, 0 if first else 1))


class ResidualBlock(nn.Module):
    """Added to the input or to its projection: 1×1 reduce, 3×3 with the stride, 1×1 expand; or two 3×3, the first with the
    stride, where nothing expands.

    (batch, inputs, height, width) → (batch, expansion · width, height / stride, width / stride).
    """

    def __init__(self, inputs: int, width: int, stride: int, expansion: int, projected: bool) -> None:
        super().__init__()
        outputs, kernel = width * expansion, 1 if expansion > 1 else 3
        last = (nn.Conv2d(width, outputs, kernel, padding=kernel // 2, bias=False), _norm(outputs))
        first = unit(inputs, width, 1) if expansion > 1 else ()
        self.body = nn.Sequential(*first, *unit(width if first else inputs, width, 3, stride), *last)
        projection = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))
        self.shortcut = projection if projected else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        result = self.body(x)
        result += self.shortcut(x)
        return cast(Tensor, self.relu(result))


def _group_of(name: str) -> tuple[int, bool]:
    """(number of the group, whether it is its first block) from 'group1.block0'."""
    group, block = name.split(".")
    return int(group.removeprefix("group")), block == "block0"


def unit(
    inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | None = None
) -> tuple[nn.Module, ...]:
    """Convolution, batch norm and ReLU. padding: on each side; half of the kernel if None."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    around = (height // 2, width // 2) if padding is None else (padding, padding)
    convolution = nn.Conv2d(inputs, outputs, (height, width), stride, around, bias=False)
    return convolution, _norm(outputs), nn.ReLU(inplace=True)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)
