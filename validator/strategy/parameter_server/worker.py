"""Workers of parameter servers: compute gradients, push them, and pull parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.program.consistency import SYNCHRONOUS
from scaleproof.simulator.run.run import Phase, Stream
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.strategy.base import Context, WholeModel
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import adopt
from scaleproof.validator.strategy.layout.messages import wait_all
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.parameter_layout import lay_out
from scaleproof.validator.train.data import Batch
from scaleproof.validator.train.models import models


class Worker(WholeModel):
    """One after the other: passes, push and pull. Parameters and gradients are views of one vector each, so that servers'
    parts need no copies. crew: the workers that push as one, by the first of them; none but this one if None."""

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, crew: Team | None) -> None:
        super().__init__(context, context.rank)
        self.strategy, self.links = strategy, links
        self.crew = Collectives(self.recorder, crew) if crew else None
        self.layout = lay_out(self.layers, strategy)
        parameters = list(self.module.parameters())
        self.values = self.layout.vector(parameters)
        self.gradient = torch.zeros_like(self.values)
        adopt(parameters, self.layout.views(self.values), self.layout.views(self.gradient))
        self.leads = crew is None or crew.place == 0
        self.size_bytes = float(self.values.numel() * self.values.element_size())

    def step(self, index: int) -> None:
        self.act()
        super().step(index)

    def act(self) -> None:
        """Makes samples in its environment."""
        if self.strategy.rollout_s:
            with self.recorder.span(Phase.INPUT):
                if self.values.is_cuda:
                    # by the parameters that have come
                    torch.cuda.current_stream().synchronize()
                time.sleep(self.strategy.rollout_s)

    def update(self) -> None:
        """Lets the servers apply the gradients. The gathering of spans cuts the wait from the pull: only servers know where."""
        self._in_crew(dist.reduce, self.gradient)
        if self.leads:
            with self.recorder.span(Phase.SEND, size_bytes=self.size_bytes, group=0, match=self._index):
                wait_all(self.push(0))
            with self.recorder.span(Phase.WAIT, size_bytes=self.size_bytes, group=0, match=self._index):
                pulls = self.pull(0)
                # the next backward pass adds to it
                self.gradient.zero_()
                wait_all(pulls)
        self._in_crew(dist.broadcast, self.values)
        if not self.leads:
            self.gradient.zero_()

    def push(self, bucket: int) -> list[dist.Work]:
        """Begins to send the gradients of a bucket to all servers that have some of it."""
        return [self.links.send(self.gradient[part], server) for server, part in self._parts(bucket)]

    def pull(self, bucket: int) -> list[dist.Work]:
        """Begins to receive its parameters."""
        return [self.links.receive(self.values[part], server) for server, part in self._parts(bucket)]

    def parameters(self) -> Mapping[str, Tensor]:
        """As servers have them in the end: where workers go each on its own, others have pushed since its last pull."""
        if self.strategy.gate != SYNCHRONOUS:
            for bucket in range(len(self.layout.buckets)):
                for server, part in self._parts(bucket):
                    dist.recv(self.values[part], server)
        return super().parameters()

    def _parts(self, bucket: int) -> Iterable[tuple[int, slice]]:
        """The rank of each server that has some of a bucket, and which part of the vector."""
        return ((self.strategy.workers + server, part) for server, part in self.layout.buckets[bucket].parts.items())

    def _in_crew(self, collective: Callable[..., Any], tensor: Tensor) -> None:
        """Gradients to who leads, or parameters from it."""
        if self.crew is not None:
            with self.recorder.span(Phase.SYNCHRONISE), self.crew.noted(tensor):
                collective(tensor, self.crew.team.ranks[0], group=self.crew.team.group)


class Overlapped(Worker):
    """Pushes a bucket once the backward pass is done with it, and waits for its pull before the layers that need it."""

    def __init__(self, context: Context, strategy: ParameterServer, links: Links) -> None:
        super().__init__(context, strategy, links, None)
        buckets, parameters = self.layout.buckets, list(self.module.parameters())
        # tensors of each bucket without a gradient yet, what is being sent, and by bucket what is received, of which step
        self.left: list[int] = []
        self.pushes: list[dist.Work] = []
        self.pulls: dict[int, tuple[int, list[dist.Work]]] = {}
        self.hooks: list[Any] = [
            parameters[tensor].register_post_accumulate_grad_hook(partial(self._made, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(buckets)
            for tensor in bucket.tensors
        ]
        ends = [*(bucket.layer for bucket in buckets[1:]), len(self.layers)]
        # what the forward pass may do with each bucket and those before it
        in_order = list(self.layers.values())
        self.pieces = [nn.Sequential(*in_order[bucket.layer : end]) for bucket, end in zip(buckets, ends, strict=True)]

    def step(self, index: int) -> None:
        self.left = [len(bucket.tensors) for bucket in self.layout.buckets]
        self.backward(self.forward(self.batches[index]))
        with self.recorder.span(Phase.SEND, size_bytes=self.size_bytes):
            wait_all(self.pushes)
            self.pushes.clear()
        self._hear(0)
        if index == self.context.total_steps - 1:
            self._hear_all()

    def forward(self, batch: Batch) -> Tensor:
        if self.strategy.rollout_s:
            # samples are made with all parameters
            self._hear_all()
            self.act()
        x = batch.inputs
        for bucket, piece in enumerate(self.pieces):
            self._hear(bucket)
            with self.recorder.span(Phase.FORWARD):
                x = piece(x)
        with self.recorder.span(Phase.FORWARD):
            loss = models.loss(x, batch.targets)
        self.note_loss(loss, len(batch.targets))
        return loss

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _made(self, bucket: int, _: Tensor) -> None:
        """A gradient of the bucket is there: with the last one it goes off, and nothing of the pass needs its parameters."""
        self.left[bucket] -= 1
        if self.left[bucket] == 0:
            begin = self.recorder.now()
            self.pushes += self.push(bucket)
            self.pulls[bucket] = self._index, self.pull(bucket)
            labels: dict[str, Any] = {"size_bytes": self._bytes(bucket), "group": bucket, "match": self._index}
            self.recorder.add(Phase.SEND, begin, begin, stream=Stream.COMMUNICATION, **labels)

    def _hear(self, bucket: int) -> None:
        """Waits for the parameters of a bucket, unless they have come already."""
        if bucket not in self.pulls:
            return
        match, pulls = self.pulls.pop(bucket)
        with self.recorder.span(Phase.WAIT, size_bytes=self._bytes(bucket), group=bucket, match=match):
            if bucket == 0:
                # the next backward pass adds to it
                self.gradient.zero_()
            wait_all(pulls)

    def _bytes(self, bucket: int) -> float:
        elements = sum(self.layout.sizes[tensor] for tensor in self.layout.buckets[bucket].tensors)
        return float(elements * self.values.element_size())

    def _hear_all(self) -> None:
        for bucket in range(len(self.pieces)):
            self._hear(bucket)
