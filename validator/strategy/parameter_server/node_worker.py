"""Workers that push together with the others of their node, bucket by bucket and next to the passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.threaded_sum import SumThread
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.messages import wait_all
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.worker import OverlappedWorker


class _Reply(NamedTuple):
    """The parameters of a bucket on their way. pulled: its result comes once the node's first worker has them, on a GPU for the
    stream that waits for it. shared: its result comes once all of the node's workers have them."""

    step: int
    pulled: Future[Tensor]
    shared: Future[Tensor]


class NodeWorker(OverlappedWorker):
    """A worker whose node sums the gradients of a bucket first; one of its workers pushes the sum, and broadcasts the reply.

    Sums and broadcasts have a thread and a group each: all of a node's workers start a group's collectives in the same order.
    """

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, sums: Team, replies: Team) -> None:
        super().__init__(context, strategy, links, sums)
        self.sums, self.sharing = Collectives(self.recorder, sums), Collectives(self.recorder, replies)
        self.sum_thread, self.reply_thread = SumThread(context.device), SumThread(context.device)
        self.summed: list[Future[Tensor]] = []
        self.replies: dict[int, _Reply] = {}

    def exchange(self, bucket: int) -> None:
        """Starts to sum the gradients of a bucket in the node, to push them, and to share the reply."""
        index, pulls = self._index, list[dist.Work]()
        devices: list[int | str | torch.device] = [self.values.device] if self.values.is_cuda else []
        pulled: Future[Tensor] = Future(devices=devices)
        parts = self.layout.buckets[bucket].parts.values()
        own = slice(min(part.start for part in parts), max(part.stop for part in parts))

        def sum_up() -> Tensor:
            gradient = self.gradient[own]
            self._collect(self.sums, dist.reduce, gradient)
            if self.leads:
                pulls.extend(self.send(bucket, index))
            return gradient

        def share() -> Tensor:
            summed.wait()
            wait_all(pulls)
            values = self.values[own]
            pulled.set_result(values)
            self._collect(self.sharing, dist.broadcast, values)
            return values

        summed = self.sum_thread.begin(sum_up)
        self.summed.append(summed)
        self.replies[bucket] = _Reply(index, pulled, self.reply_thread.begin(share))

    def end_pushes(self) -> None:
        """Waits until the node has summed all gradients of a step, and its first worker has sent them."""
        with self.recorder.span(Phase.SYNCHRONISE):
            for summed in self.summed:
                summed.wait()
            self.summed.clear()
        if self.leads:
            super().end_pushes()

    def await_pull(self, bucket: int) -> None:
        """Waits for the parameters of a bucket, unless they have come already."""
        if bucket not in self.replies:
            return
        reply = self.replies.pop(bucket)
        self.clear_gradient(bucket)
        if self.leads:
            with self.recorder.span(Phase.WAIT, **self.labels(bucket, reply.step)):
                reply.pulled.wait()
        with self.recorder.span(Phase.SYNCHRONISE):
            reply.shared.wait()

    def close(self) -> None:
        """Ends the threads of the node's sums and broadcasts."""
        self.sum_thread.close()
        self.reply_thread.close()
        super().close()

    def _collect(self, collectives: Collectives, collective: Any, tensor: Tensor) -> None:
        """Reduces gradients to the node's first worker, or broadcasts parameters from it."""
        with collectives.noted(tensor):
            collective(tensor, collectives.team.ranks[0], group=collectives.team.group)
