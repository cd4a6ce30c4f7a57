"""Hybrids with parameter servers: servers update a set of parameters once all ranks that have a copy of it have pushed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.hybrid.replica import Replica
from scaleproof.validator.strategy.layout.flat import pack, replace_values, views
from scaleproof.validator.strategy.layout.mesh import build_mesh, holdings
from scaleproof.validator.strategy.layout.messages import wait_all
from scaleproof.validator.strategy.parameter_server.bucket_shard import BucketShard, load_kernels
from scaleproof.validator.strategy.parameter_server.links import Arrivals, Links
from scaleproof.validator.strategy.parameter_server.server import note_push
from scaleproof.validator.strategy.parameter_server.shards import equal_bounds


class HybridWorker(Replica):
    """A training rank. Parameters and gradients are views of one vector each, of which every server has an equal part."""

    updates_parameters = False

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.links = _links(self.plan)
        groups = holdings(self.plan)
        self.holding = next(number for number, ranks in enumerate(groups) if context.rank in ranks)
        parameters = list(self.module.parameters())
        self.values = pack(parameters)
        replace_values(parameters, views(self.values, parameters))
        # after the parameters outside the vector have been freed
        self.gradient = torch.zeros_like(self.values)
        for parameter, slope in zip(parameters, views(self.gradient, parameters), strict=True):
            parameter.grad = slope
        bounds = equal_bounds(len(self.values), self.plan.servers)
        self.parts = {self.plan.ranks + n: slice(*bounds[n : n + 2]) for n in range(self.plan.servers)}
        if context.rank == groups[self.holding][0]:
            self._send_initial()

    def update(self) -> None:
        """Pushes the gradients and pulls the parameters. `record.assemble` splits the wait from the pull by servers' spans."""
        labels = {"stage": self.stage, "group": self.holding, "match": self._index}
        with self.recorder.span(Phase.SEND, size_bytes=float(self.values.nbytes), **labels):
            wait_all([self.links.send(self.gradient[part], server) for server, part in self.parts.items()])
        with self.recorder.span(Phase.WAIT, size_bytes=float(self.values.nbytes), **labels):
            pulls = [self.links.receive(self.values[part], server) for server, part in self.parts.items()]
            self.gradient.zero_()
            wait_all(pulls)

    def complete(self) -> None:
        """Receives the servers' parameters where they are more precise than those that were pulled."""
        if self.context.has_wider_copies:
            values = torch.empty_like(self.values, dtype=self.context.updated_dtype)
            wait_all([self.links.receive(values[part], server) for server, part in self.parts.items()])
            parameters = list(self.module.parameters())
            replace_values(parameters, views(values, parameters))

    def _send_initial(self) -> None:
        """Sends this rank's initial parameters to the servers."""
        for server, part in self.parts.items():
            own = self.values[part]
            wait_all([self.links.send(own.new_tensor([len(own)], dtype=torch.int64), server)])
            wait_all([self.links.send(own, server)])


class HybridServer(Trainer):
    """A server with an equal part of each rank's parameters. Sums are taken in rank order, so that runs are reproducible."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context)
        load_kernels(context)
        # every rank must create all process groups
        build_mesh(strategy.plan, context.device.type)
        self.links = _links(strategy.plan)
        self.holders = holdings(strategy.plan)
        self.parts = [BucketShard(context, number, self._initial(ranks[0])) for number, ranks in enumerate(self.holders)]
        self.arrivals = {rank: Arrivals(self.recorder, context.device) for ranks in self.holders for rank in ranks}
        self.pushed = [
            [torch.empty_like(part.value.detach()) for _ in ranks] for part, ranks in zip(self.parts, self.holders, strict=True)
        ]

    def step(self, index: int) -> None:
        """Receives the gradients of all ranks, updates each part once its gradients are there, and replies."""
        for gradients, ranks in zip(self.pushed, self.holders, strict=True):
            for gradient, rank in zip(gradients, ranks, strict=True):
                self.arrivals[rank].post(self.links.receive(gradient, rank))
        for number, part in enumerate(self.parts):
            labels = {"group": number, "match": index}
            for rank, gradient in zip(self.holders[number], self.pushed[number], strict=True):
                with self.recorder.span(Phase.WAIT):
                    received = self.arrivals[rank].next()
                note_push(self.recorder, received, part, peer=rank, **labels)
                with self.recorder.span(Phase.OPTIMIZER, **labels):
                    part.add(gradient, 1)
            with self.recorder.span(Phase.OPTIMIZER, **labels):
                part.update()
            self._reply(part, self.holders[number], labels)

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The optimizer of each part."""
        return [part.optimizer for part in self.parts]

    def complete(self) -> None:
        """Sends the parameters where they are more precise than those that ranks have pulled."""
        if self.context.has_wider_copies:
            for part, ranks in zip(self.parts, self.holders, strict=True):
                final = part.final()
                wait_all([self.links.send(final, rank) for rank in ranks])

    def parameters(self) -> dict[str, Tensor]:
        """Nothing: training ranks have pulled all parameters."""
        return {}

    def close(self) -> None:
        """Ends the threads that wait for gradients."""
        for arrivals in self.arrivals.values():
            arrivals.close()

    def _initial(self, holder: int) -> Tensor:
        length = torch.empty(1, dtype=torch.int64, device=self.context.device)
        wait_all([self.links.receive(length, holder)])
        initial = torch.empty(int(length), dtype=self.context.dtype, device=self.context.device)
        wait_all([self.links.receive(initial, holder)])
        return initial

    def _reply(self, part: BucketShard, ranks: Sequence[int], labels: dict[str, int]) -> None:
        size_bytes = part.reply_bytes * len(ranks)
        with self.recorder.span(Phase.SEND, size_bytes=size_bytes, **labels):
            wait_all([self.links.send(part.value.detach(), rank) for rank in ranks])


def _links(plan: Plan) -> Links:
    return Links(range(plan.ranks), range(plan.ranks, plan.ranks + plan.servers), own=dist.get_backend() == "nccl")
