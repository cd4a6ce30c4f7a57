"""Synchronous parameter servers: workers push gradients, servers sum and update, workers pull parameters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.run import Phase
from simulator.strategy import ParameterServer
from validator.strategy.base import Context, Trainer, WholeModel, apply_update


def create(context: Context, strategy: ParameterServer) -> Trainer:
    """The worker or the server that this rank is: workers come first."""
    if context.rank < strategy.workers:
        return Worker(context, strategy)
    return Server(context, strategy)


def shard_bounds(elements: int, servers: int) -> list[int]:
    """Where each server's contiguous shard of the parameters begins, and the end: shards differ by at most one element."""
    return [elements * server // servers for server in range(servers + 1)]


def shards_of(flat: Tensor, servers: int) -> list[Tensor]:
    """Views of each server's shard."""
    bounds = shard_bounds(flat.numel(), servers)
    return [flat[begin:end] for begin, end in pairwise(bounds)]


def flatten(module: nn.Module) -> Tensor:
    """All parameters of a module as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class Worker(WholeModel):
    """Computes gradients; parameters and gradients are views of one vector each, so that shards need no copies."""

    def __init__(self, context: Context, strategy: ParameterServer) -> None:
        super().__init__(context, context.rank)
        self.servers = range(strategy.workers, strategy.ranks)
        flat = flatten(self.module)
        self.gradient = torch.zeros_like(flat)
        _view_as_parts(self.module, flat, self.gradient)
        self.shards = shards_of(flat, strategy.servers)
        self.gradient_shards = shards_of(self.gradient, strategy.servers)
        self.size_bytes = float(flat.numel() * flat.element_size())

    def update(self) -> None:
        """Lets the servers apply the gradients. The gathering of spans cuts the wait from the pull: only servers know where."""
        with self.recorder.span(Phase.SEND, size_bytes=self.size_bytes):
            pushes = [dist.isend(shard, server) for server, shard in zip(self.servers, self.gradient_shards, strict=True)]
            for push in pushes:
                _wait(push)
        with self.recorder.span(Phase.WAIT, size_bytes=self.size_bytes):
            pulls = [dist.irecv(shard, server) for server, shard in zip(self.servers, self.shards, strict=True)]
            # the next backward pass adds to it
            self.gradient.zero_()
            for pull in pulls:
                _wait(pull)


class Server(Trainer):
    """Holds one shard of the parameters and updates it with the mean of the workers' gradients."""

    def __init__(self, context: Context, strategy: ParameterServer) -> None:
        super().__init__(context)
        self.workers = range(strategy.workers)
        initial = flatten(nn.Sequential(*context.build_all().values()))
        self.server = context.rank - strategy.workers
        self.shard = nn.Parameter(shards_of(initial, strategy.servers)[self.server].clone())
        self.received = [torch.empty_like(self.shard) for _ in self.workers]
        self.optimizer = context.optimizer([self.shard])

    def step(self, index: int) -> None:
        pushes = [dist.irecv(gradient, worker) for worker, gradient in zip(self.workers, self.received, strict=True)]
        total = self.received[0]
        for worker, push in zip(self.workers, pushes, strict=True):
            with self.recorder.span(Phase.WAIT):
                _wait(push)
            if worker > 0:
                # in rank order, whoever comes first: sums are then the same in every run
                with self.recorder.span(Phase.OPTIMIZER):
                    total.add_(self.received[worker])
        self.shard.grad = total.div_(len(self.workers))
        apply_update(self.recorder, self.optimizer)
        with self.recorder.span(
            Phase.SEND, size_bytes=float(self.shard.numel() * self.shard.element_size() * len(self.workers))
        ):
            for pull in [dist.isend(self.shard.detach(), worker) for worker in self.workers]:
                _wait(pull)

    def parameters(self) -> Mapping[str, Tensor]:
        return {f"shard{self.server}": self.shard}


def _view_as_parts(module: nn.Module, flat: Tensor, gradient: Tensor) -> None:
    """Makes the module's parameters and their gradients views of the two vectors."""
    parameters = list(module.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, value, slope in zip(parameters, torch.split(flat, sizes), torch.split(gradient, sizes), strict=True):
        parameter.data = value.view_as(parameter)
        parameter.grad = slope.view_as(parameter)


def _wait(work: dist.Work | None) -> None:
    """Waits for a message; there is none to wait for only where a rank is outside of the group."""
    if work is not None:
        work.wait()
