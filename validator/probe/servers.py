"""What a parameter server does: summing gradients, updating parameters, and being pushed to and pulled from.

All ranks call a probe, and each gets all its points. What is done is what the servers in `validator.strategy` do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from simulator.cluster.device import Optimizer
from validator.probe.adaptive import Step, by_size, timed
from validator.probe.peers import Together, named
from validator.probe.points import Point
from validator.probe.turns import groups_in_turn
from validator.rank import here
from validator.strategy.base import build_optimizer
from validator.strategy.messages import receive, send, wait_all

SIZES: Final = (2**10, 2**16, 2**20)
_LEARNING_RATE: Final = 1e-3


def updates(
    workers: Sequence[int] = (1, 4),
    optimizers: Sequence[Optimizer] = ("sgd", "adam"),
    sizes: Sequence[int] = SIZES,
    budget_s: float = 3.0,
) -> list[dict[str, Any]]:
    """Seconds of an update on rank 0, while the others wait, by parameters: the sum of so many `workers`' gradients, and a step
    of the optimizer."""

    def probe(peers: Together, budget_s: float) -> Iterable[Point]:
        for name, count in itertools.product(optimizers, workers):
            what = f"{name} of {count} {'gradient' if count == 1 else 'gradients'}"
            each_s = budget_s / len(optimizers) / len(workers)
            for size, samples in by_size(partial(_update, name, count), sizes, each_s, peers):
                yield samples.point("update", what, "rank 0", peers.ranks, size, "parameters", workers=count)

    return groups_in_turn([[0]], probe, budget_s)


def pushes(
    server: int,
    workers: Sequence[int],
    optimizer: Optimizer = "sgd",
    sizes: Sequence[int] = SIZES,
    budget_s: float = 3.0,
) -> list[dict[str, Any]]:
    """Seconds, of the slowest rank, from pushing its gradient to having the parameters that the server has updated by all
    workers' gradients."""
    where, count = f"{named(workers)} to {named([server])}", len(workers)

    def probe(peers: Together, budget_s: float) -> Iterable[Point]:
        for size, samples in by_size(partial(_round, server, workers, optimizer), sizes, budget_s, peers):
            yield samples.point("update", "push and pull", where, peers.ranks, size, "parameters", workers=count)

    return groups_in_turn([sorted({server, *workers})], probe, budget_s)


class _Part:
    """Parameters and the gradients that workers have for them."""

    def __init__(self, optimizer: Optimizer, size: int, workers: int) -> None:
        device = here().device
        self.value = nn.Parameter(torch.zeros(size, device=device))
        self.gradients = [torch.ones(size, device=device) for _ in range(workers)]
        self._optimizer = build_optimizer(optimizer, [self.value], _LEARNING_RATE)

    def update(self) -> None:
        """By the mean of the gradients, the first of which it is left in."""
        total = self.gradients[0]
        for gradient in self.gradients[1:]:
            total.add_(gradient)
        self.value.grad = total.div_(len(self.gradients))
        self._optimizer.step()


def _update(optimizer: Optimizer, workers: int, size: int) -> Step:
    return timed(_Part(optimizer, size, workers).update)


def _round(server: int, workers: Sequence[int], optimizer: Optimizer, size: int) -> Step:
    """All workers push, the server updates, all pull."""
    part = _Part(optimizer, size, len(workers))
    value = part.value.detach()

    def push_and_pull() -> None:
        send(part.gradients[0], server).wait()
        receive(value, server).wait()

    def serve() -> None:
        wait_all([receive(gradient, worker) for worker, gradient in zip(workers, part.gradients, strict=True)])
        part.update()
        wait_all([send(value, worker) for worker in workers])

    return timed(serve if here().rank == server else push_and_pull)
