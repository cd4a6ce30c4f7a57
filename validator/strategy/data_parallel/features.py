"""Exchanges of features among data-parallel workers, whose contrastive loss compares them."""

from __future__ import annotations

import torch
from torch import Tensor

from scaleproof.simulator.parallelism.replicas import compared_workers
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.layout.messages import pass_on, wait_all
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, both_ways
from scaleproof.validator.train.models.contrastive import ContrastiveLoss


class FeatureExchange(PassCollectives):
    """The workers of a contrastive loss."""

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.team.size

    @property
    def place(self) -> int:
        """This worker's place."""
        return self.team.place

    def passed_on(self, x: Tensor) -> Tensor:
        """The previous worker's features, whose gradients return to it."""
        return both_ways(lambda own: self._moved(own, back=False), lambda gradient: self._moved(gradient, back=True), x)

    def _moved(self, own: Tensor, back: bool) -> Tensor:
        own = own.detach().contiguous()
        theirs = torch.empty_like(own)
        with self.noted(own):
            wait_all(pass_on(self.team, own, theirs, back))
        return theirs


def connect(loss: ContrastiveLoss, context: Context) -> None:
    """Connects a loss of this worker with those of others, if it compares their features; to be called on all workers."""
    workers = compared_workers(context.scenario.model, context.scenario.strategy)
    if workers > 1:
        loss.peers = FeatureExchange(context.recorder, Team.of([list(range(workers))], "features"))
