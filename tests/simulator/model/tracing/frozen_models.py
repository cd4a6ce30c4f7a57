"""Users' modules with frozen parameters; each function returns a module and example inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, DEPTH, BATCH = 64, 40, 4


class Adapted(nn.Module):
    """A layer whose own weights are frozen, with a low-rank product that is trained next to it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(width, width), nn.Linear(width, rank, bias=False), nn.Linear(rank, width)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.base(x) + self.up(self.down(x)))


class Encoded(nn.Module):
    """A frozen encoder that runs without autograd, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).requires_grad_(False)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.encoder(x)
        return self.head(x)  # type: ignore[no-any-return]


def tower(frozen: int = 0, width: int = WIDTH) -> tuple[nn.Module, Tensor]:
    """Equal linear layers, of which the first `frozen` are not trained."""
    layers = [nn.Linear(width, width) for _ in range(DEPTH)]
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    return nn.Sequential(*layers), torch.randn(BATCH, width)


def trained_tower() -> tuple[nn.Module, Tensor]:
    return tower()


def frozen_tower() -> tuple[nn.Module, Tensor]:
    return tower(DEPTH - 1)


def half_frozen_tower() -> tuple[nn.Module, Tensor]:
    return tower(DEPTH // 2)


def frozen_top() -> tuple[nn.Module, Tensor]:
    """All layers but the first are frozen: gradients pass through them."""
    module, x = tower(DEPTH)
    first = next(module.children())
    return module, (first.requires_grad_(True), x)[1]


def adapted() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(Adapted(WIDTH, 2) for _ in range(4))), torch.randn(BATCH, WIDTH)


def encoded() -> tuple[nn.Module, Tensor]:
    return Encoded(), torch.randn(BATCH, WIDTH)


def convolutions() -> tuple[nn.Module, Tensor]:
    """A frozen stem, and a trained and a frozen layer above it."""
    sizes = ((3, 8, False), (8, 8, True), (8, 8, False))
    layers = [nn.Conv2d(inputs, outputs, 3).requires_grad_(trained) for inputs, outputs, trained in sizes]
    return nn.Sequential(*layers), torch.randn(BATCH, 3, 16, 16)


def attention() -> tuple[nn.Module, Tensor]:
    """Transformer blocks, of which only the last is trained."""
    blocks = [nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True, dropout=0.0) for _ in range(3)]
    for block in blocks[:-1]:
        block.requires_grad_(False)
    return nn.Sequential(*blocks), torch.randn(BATCH, 16, WIDTH)
