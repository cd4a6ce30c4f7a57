"""Users' modules; each function returns what `scaleproof.simulator.model.tracing.user_function` describes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + functional.gelu(self.linear(self.norm(x))) * scale


class Skipping(nn.Module):
    """Blocks that all read a value computed from the input alone; the last also reads the first one's output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head, self.unused = nn.Linear(32, 5), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().mean(-1, keepdim=True).exp()
        first = y = self.stem(x)
        for block in self.blocks:
            y = block(y, scale)
        return self.head(torch.cat([y, first], -1))  # type: ignore[no-any-return]


class Towers(nn.Module):
    """Two towers with weights of their own, and their distance."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(8, 16) for _ in range(2))
        self.head = nn.Linear(16, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.towers[0](left) - self.towers[1](right)).abs())  # type: ignore[no-any-return]


class Cycle(Skipping):
    """Runs the first block once more after the others."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().mean(-1, keepdim=True).exp()
        y = self.stem(x)
        for block in [*self.blocks, self.blocks[0]]:
            y = block(y, scale)
        return self.head(torch.cat([y, y], -1))  # type: ignore[no-any-return]


def with_loss() -> dict[str, Any]:
    return {
        "module": Skipping(),
        "inputs": torch.randn(4, 8),
        "targets": torch.randint(5, (4,)),
        "loss": functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    }


def plain() -> tuple[nn.Module, Tensor]:
    return Skipping(), torch.randn(4, 8)


def frozen() -> tuple[nn.Module, Tensor]:
    """Only the last block and the head are trained."""
    module = Skipping()
    for layer in (module.stem, *module.blocks[:-1]):
        layer.requires_grad_(False)
    return module, torch.randn(4, 8)


def towers() -> tuple[nn.Module, Tensor, Tensor]:
    return Towers(), torch.randn(4, 8), torch.randn(4, 8)


def cycle() -> tuple[nn.Module, Tensor]:
    return Cycle(), torch.randn(4, 8)


def loss_of_samples() -> dict[str, Any]:
    return with_loss() | {"loss": lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none")}


def detached() -> dict[str, Any]:
    return with_loss() | {"loss": lambda outputs, targets: functional.cross_entropy(outputs.detach(), targets)}


class Scaled(nn.Module):
    """A product with a parameter that is a single number, of embeddings with dense or sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(12, 8, sparse=sparse), nn.Parameter(torch.tensor(2.0))

    def forward(self, words: Tensor) -> Tensor:
        return cast(Tensor, self.words(words) * self.scale)


class Recommender(nn.Module):
    """A bag of items and a table that two fields share by an offset, with sparse or dense gradients, between dense layers."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.bottom, self.items = nn.Linear(3, 8), nn.EmbeddingBag(60, 8, mode="mean", sparse=sparse)
        self.fields, self.top = nn.Embedding(40, 4, sparse=sparse), nn.Linear(24, 1)
        self.offsets = nn.Buffer(torch.tensor([0, 20]))

    def forward(self, dense: Tensor, items: Tensor, fields: Tensor) -> Tensor:
        x = functional.relu(self.bottom(dense))
        looked_up = self.fields(fields % 20 + self.offsets)
        return self.top(torch.cat([x, self.items(items), looked_up.flatten(1)], -1))  # type: ignore[no-any-return]


def recommender() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    return Recommender(), torch.randn(30, 3), torch.arange(120).reshape(30, 4) % 60, torch.arange(60).reshape(30, 2)


def dense_recommender() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    return Recommender(sparse=False), *recommender()[1:]


def recommender_of_half() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Samples look up half of the rows of each table."""
    module, dense, items, fields = recommender()
    return module, dense, items % 30, fields % 10


def recommender_with_optimizer() -> dict[str, Any]:
    module, *inputs = recommender()
    return {"module": module, "inputs": inputs, "optimizer": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)}


class Chosen(nn.Module):
    """Looks up the row of the largest output of a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.rows, self.top = nn.Linear(3, 5), nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.rows(self.gate(x).argmax(-1)))  # type: ignore[no-any-return]


def chosen_rows() -> tuple[nn.Module, Tensor]:
    return Chosen(), torch.randn(4, 3)


def normed_batches() -> tuple[nn.Module, Tensor]:
    """Two products with a batch norm of one value of each channel and sample between them."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), torch.randn(8, 4)


def single_number() -> tuple[nn.Module, Tensor]:
    return Scaled(sparse=False), torch.randint(12, (4, 3))


def sparse_gradients() -> tuple[nn.Module, Tensor]:
    return Scaled(sparse=True), torch.randint(12, (4, 3))


def targets_alone() -> dict[str, Any]:
    return {"module": Skipping(), "inputs": torch.randn(4, 8), "targets": torch.randint(5, (4,))}
