"""A recommender of your own with sparse embeddings, for parameter servers.

scaleproof predict wide-and-deep-servers-2016 --set model=python:examples.recommender:build --set strategy.sparse=null
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

USERS, ITEMS, WIDTH = 100_000, 400_000, 32


class Recommender(nn.Module):
    """A click's logit from a user and the items of a history; gradients of the tables have rows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, user: Tensor, history: Tensor) -> Tensor:
        """Logits of samples. history: numbers of items, shape (samples, items)."""
        logits: Tensor = self.top(torch.cat([self.users(user), self.items(history)], -1))
        return logits


def build() -> tuple[nn.Module, Tensor, Tensor]:
    """The module and example inputs: a user and 20 items of each sample."""
    return Recommender(), torch.randint(USERS, (4096,)), torch.randint(ITEMS, (4096, 20))
