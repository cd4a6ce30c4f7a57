"""Contrastive losses of a user's two towers, which compare the features of this worker's samples with those of all workers."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.contrastive import Contrast
from scaleproof.simulator.model.tracing.user_function import UserModel
from scaleproof.validator.train.models.traced import WithLoss


class FeaturePeers(Protocol):
    """Workers whose features a loss compares."""

    @property
    def size(self) -> int:
        """Number of workers."""

    @property
    def place(self) -> int:
        """The place of this one."""

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        """The features of all workers; gradients are scattered."""

    def passed_on(self, x: Tensor) -> Tensor:
        """The features that the previous worker has; gradients return to it."""


class ContrastiveLoss(nn.Module):
    """The loss of scaled features of images, features of words, and a bias of their products, if any.

    peers: None where features are those of one worker.
    """

    def __init__(self, contrast: Contrast) -> None:
        super().__init__()
        self.contrast = contrast
        self.peers: FeaturePeers | None = None

    def forward(self, images: Tensor, words: Tensor, *bias: Tensor) -> Tensor:
        """The loss of a batch."""
        if self.contrast == "ring":
            return _sigmoid_loss(images, words, bias[0] if bias else images.new_zeros(1), self.peers)
        return _softmax_loss(images, words, self.peers)


class Contrasted(WithLoss):
    """A user's towers with their loss: reads inputs and returns one number. The module returns what the loss reads."""

    def __init__(self, source: str, user: UserModel, contrast: Contrast) -> None:
        super().__init__(source, user)
        self.contrast = ContrastiveLoss(contrast)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.contrast(*self.model(*tensors))  # type: ignore[no-any-return]


def _softmax_loss(images: Tensor, words: Tensor, peers: FeaturePeers | None) -> Tensor:
    """Mean cross entropy of the words of each image, and of the image of each words, among those of all workers."""
    own, all_images, all_words = torch.arange(len(images), device=images.device), images, words
    if peers is not None:
        own = own + peers.place * len(images)
        all_images, all_words = (peers.gathered(one, 0) for one in (images, words))
    return (functional.cross_entropy(images @ all_words.T, own) + functional.cross_entropy(words @ all_images.T, own)) / 2


def _sigmoid_loss(images: Tensor, words: Tensor, bias: Tensor, peers: FeaturePeers | None) -> Tensor:
    """Sum of the losses of all pairs with an image of this worker, over its number; words of others arrive around a ring."""
    signs = 2 * torch.eye(len(images), dtype=images.dtype, device=images.device) - 1
    loss = -functional.logsigmoid(signs * (images @ words.T + bias)).sum()
    for _ in range(1, 1 if peers is None else peers.size):
        assert peers is not None, "a ring has several workers"
        words = peers.passed_on(words)
        loss = loss - functional.logsigmoid(-(images @ words.T + bias)).sum()
    return loss / len(images)
