"""Plain torch models for tracing; each function returns a module and example inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GPT = {"layers": 3, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}
BATCH = 4


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.downsample(x)
        return self.relu(y)  # type: ignore[no-any-return]


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for group, count in enumerate((3, 4, 6, 3)):
            blocks = []
            for index in range(count):
                blocks.append(Bottleneck(inputs, 64 * 2**group, 2 if group and not index else 1))
                inputs = 256 * 2**group
            setattr(self, f"layer{group + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for group in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = group(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.projection(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class ScoresBlock(Block):
    """Attention written as its two products."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ v


class Gpt(nn.Module):
    def __init__(self, block: type[Block], tied: bool = False) -> None:
        super().__init__()
        hidden = GPT["hidden"]
        self.tokens, self.positions = nn.Embedding(GPT["vocabulary"], hidden), nn.Embedding(GPT["sequence"], hidden)
        self.blocks = nn.ModuleList([block(hidden, GPT["heads"]) for _ in range(GPT["layers"])])
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, GPT["vocabulary"], bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Skipping(nn.Module):
    """The output of the first layer is added to that of the third."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        first = self.parts[0](x)
        return self.parts[3](self.parts[2](self.parts[1](first)) + first)  # type: ignore[no-any-return]


class Unit(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int]) -> None:
        padding = kernel[0] // 2, kernel[1] // 2
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Branches(nn.Module):
    """Three concatenated branches, a pool and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Unit(12, 16, (1, 1)), nn.Sequential(Unit(12, 8, (1, 1)), Unit(8, 16, (1, 3)))
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), Unit(12, 4, (1, 1)))
        self.last = nn.Sequential(nn.MaxPool2d(3, 2), Unit(36, 8, (3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.two(x), self.pooled(x)], 1))  # type: ignore[no-any-return]


def tokens() -> Tensor:
    return torch.zeros(BATCH, GPT["sequence"], dtype=torch.long)


def resnet50() -> Any:
    return ResNet50(), torch.randn(BATCH, 3, 224, 224)


def gpt() -> Any:
    return Gpt(Block), tokens()


def scores_gpt() -> Any:
    return Gpt(ScoresBlock), tokens()


def tied_gpt() -> Any:
    return Gpt(Block, tied=True), tokens()


def skipping() -> Any:
    return Skipping(), torch.randn(BATCH, 8)
