"""Update times of a parameter server, which sums gradients and updates parameters as the servers in `validator.strategy` do.

All ranks call the probe, and each gets all its points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from scaleproof.simulator.cluster.device.device import Optimizer
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Step, by_size, timed
from scaleproof.validator.probe.peers import GroupPeers
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import groups_in_turn
from scaleproof.validator.train.optimizers import build_optimizer

SIZES: Final = (2**10, 2**16, 2**20)
_LEARNING_RATE: Final = 1e-3


def updates(
    workers: Sequence[int], optimizers: Sequence[Optimizer], sizes: Sequence[int], budget_s: float
) -> list[dict[str, Any]]:
    """Points of server updates on rank 0, while the other ranks wait, by number of parameters: the sum of the gradients of
    `workers` workers, and an optimizer step."""

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        for name, count in itertools.product(optimizers, workers):
            what = f"{name} of {count} {'gradient' if count == 1 else 'gradients'}"
            each_s = budget_s / len(optimizers) / len(workers)
            for size, samples in by_size(partial(_update, name, count), sizes, each_s, peers):
                yield samples.point("update", what, "rank 0", peers.ranks, size, "parameters", workers=count)

    return groups_in_turn([[0]], probe, budget_s)


class _ServerShard:
    """Parameters of one server and the workers' gradients for them."""

    def __init__(self, optimizer: Optimizer, size: int, workers: int) -> None:
        device = here().device
        self.value = nn.Parameter(torch.zeros(size, device=device))
        self.gradients = [torch.ones(size, device=device) for _ in range(workers)]
        self._optimizer = build_optimizer(optimizer, [self.value], _LEARNING_RATE)

    def update(self) -> None:
        """Steps the optimizer with the mean of the gradients, which replaces the first gradient."""
        total = self.gradients[0]
        for gradient in self.gradients[1:]:
            total.add_(gradient)
        self.value.grad = total.div_(len(self.gradients))
        self._optimizer.step()


def _update(optimizer: Optimizer, workers: int, size: int) -> Step:
    return timed(_ServerShard(optimizer, size, workers).update)
