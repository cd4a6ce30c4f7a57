"""Parameter servers: each keeps a part of the parameters and updates it with the gradients that workers push."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.record.steps import steps_of_worker, warmup_steps
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.layout.messages import wait_all
from scaleproof.validator.strategy.parameter_server.bucket_shard import BucketShard, TableShard, load_kernels
from scaleproof.validator.strategy.parameter_server.consistency import PushOrder, push_order
from scaleproof.validator.strategy.parameter_server.links import Arrivals, Leave, Links, Listener, Push
from scaleproof.validator.strategy.parameter_server.shards import has_final_parameters, lay_out
from scaleproof.validator.strategy.parameter_server.sparse_rows import RowMessages
from scaleproof.validator.strategy.parameter_server.work_units import UnitGrants, rounds
from scaleproof.validator.train.data import sparse_tables

Pushers = Sequence[Sequence[int]]


def note_push(recorder: Recorder, received: Any, part: BucketShard, **labels: int) -> None:
    """Records a push as received at the mark `received`. Only the worker knows when it began to send."""
    recorder.add(Phase.RECEIVE, received, received, stream=Stream.COMMUNICATION, size_bytes=part.push_bytes, **labels)


class Server(Trainer):
    """A rank that keeps its part of each bucket, in the order of pushes: buckets of the last layers come first.

    pushers: the workers of each pusher; the first of them sends and receives.
    """

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, pushers: Pushers) -> None:
        super().__init__(context)
        self.strategy, self.links, self.pushers = strategy, links, pushers
        self.number = context.rank - strategy.workers
        self.layout = lay_out(context.model.shapes(), strategy, sparse_tables(context.scenario))
        self.parts = [self._shard(bucket, initial) for bucket, initial in self._initial().items()]
        load_kernels(context)
        self._send_first_rows()

    def _send_first_rows(self) -> None:
        """Sends workers the parts of the initial parameters that have tables, with the rows of their first steps."""
        for number, pusher in enumerate(self.pushers):
            for part in self.parts:
                if isinstance(part, TableShard):
                    request = part.messages.new_request(self.context.device)
                    wait_all([self.links.receive(request, pusher[0])])
                    part.request(number, part.messages.requested(request))
                    wait_all([self.links.send(part.reply(number), pusher[0])])

    def _initial(self) -> dict[int, Tensor]:
        """By bucket this server's part of the initial parameters. Layers are built one by one, and nothing else of them is
        kept: whole models may not fit into a device."""
        parts, taken = dict[int, Tensor](), dict[tuple[int, str], tuple[Tensor, slice]]()
        for number, bucket in [*enumerate(self.layout.buckets)][::-1]:
            if self.number in bucket.parts:
                ranges = self.layout.ranges(number, self.number)
                sizes = [end - begin for _, begin, end in ranges]
                parts[number] = torch.empty(sum(sizes), dtype=self.context.dtype, device=self.context.device)
                for (tensor, begin, end), value in zip(ranges, torch.split(parts[number], sizes), strict=True):
                    taken[self.layout.names[tensor]] = value, slice(begin, end)

        def take(number: int, layer: nn.Module) -> None:
            for name, parameter in layer.named_parameters():
                if (number, name) in taken:
                    value, part = taken[number, name]
                    value.copy_(parameter.detach().flatten()[part])
            layer.to("meta")

        self.context.build(self.context.model.numbers, take)
        return parts

    def _shard(self, bucket: int, initial: Tensor) -> BucketShard:
        """The server's part of a bucket."""
        messages = RowMessages.of(self.context.scenario, self.layout, bucket, self.number)
        if messages is None:
            return BucketShard(self.context, bucket, initial)
        is_synchronous = self.strategy.consistency == SYNCHRONOUS
        return TableShard(self.context, bucket, initial, messages, updates_all=is_synchronous)

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The optimizer of each part."""
        return [part.optimizer for part in self.parts]

    def complete(self) -> None:
        """Sends the parameters to every worker, in rank order, where workers' own parameters are not the final ones."""
        if not has_final_parameters(self.context, self.strategy):
            for worker in range(self.strategy.workers):
                for part in reversed(self.parts):
                    dist.send(part.final(), worker)

    def parameters(self) -> Mapping[str, Tensor]:
        """The server's parts of the parameters as one vector, 'shard' and its number."""
        values = [part.value.detach() for part in reversed(self.parts)]
        return {f"shard{self.number}": torch.cat(values)} if values else {}


class SynchronousServer(Server):
    """Updates once all have pushed. Sums are taken in rank order, so that every run gives the same result."""

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, pushers: Pushers) -> None:
        super().__init__(context, strategy, links, pushers)
        self.received = [[part.new_push() for _ in pushers] for part in self.parts]
        self.arrivals = [Arrivals(self.recorder, context.device) for _ in pushers]

    def step(self, index: int) -> None:
        """Receives the gradients of all pushers, updates each part once its gradients are there, and replies."""
        for gradients in self.received:
            for pusher, gradient, arrivals in zip(self.pushers, gradients, self.arrivals, strict=True):
                arrivals.post(self.links.receive(gradient, pusher[0]))
        sent: list[tuple[BucketShard, Any, list[dist.Work]]] = []
        for part, gradients in zip(self.parts, self.received, strict=True):
            for number, (pusher, gradient, arrivals) in enumerate(zip(self.pushers, gradients, self.arrivals, strict=True)):
                with self.recorder.span(Phase.WAIT):
                    received = arrivals.next()
                part.receive(number, gradient)
                note_push(self.recorder, received, part, peer=pusher[0], group=part.bucket, match=index)
                with self.recorder.span(Phase.OPTIMIZER):
                    part.add(gradient, len(pusher))
            with self.recorder.span(Phase.OPTIMIZER):
                part.update()
            begin = self.recorder.now()
            sent.append((part, begin, [self.links.send(part.reply(n), pusher[0]) for n, pusher in enumerate(self.pushers)]))
        self._finish(index, sent)

    def close(self) -> None:
        """Ends the threads that wait for gradients."""
        for arrivals in self.arrivals:
            arrivals.close()

    def _finish(self, index: int, sent: Sequence[tuple[BucketShard, Any, list[dist.Work]]]) -> None:
        """Waits until all replies are sent. All but the last were sent while the server went on with the next bucket."""
        self.recorder.enter(Phase.SEND)
        for part, begin, replies in sent:
            for reply in replies:
                reply.wait()
            self.recorder.add(
                Phase.SEND,
                begin,
                self.recorder.now(),
                stream=Stream.MAIN if part is self.parts[-1] else Stream.COMMUNICATION,
                size_bytes=part.reply_bytes * len(self.pushers),
                group=part.bucket,
                match=index,
            )


class AsynchronousServer(Server):
    """Serves pushes in order of arrival, and replies to each pusher when the consistency model allows it.

    A step serves the number of pushes that all pushers make in one of their steps, the last one those that are left. log:
    (action, bucket, pusher).
    """

    def __init__(
        self, context: Context, strategy: ParameterServer, links: Links, pushers: Pushers, grants: UnitGrants | None
    ) -> None:
        """grants: of shared units; None where each worker's number of steps is known."""
        super().__init__(context, strategy, links, pushers)
        self.grants = grants
        # pushers whose last push is still to be reported
        self.to_leave = len(pushers) if grants else 0
        known = [steps_of_worker(context.scenario, workers[0]) for workers in pushers]
        pushes = dict.fromkeys(range(len(pushers)), math.inf) if grants else dict(enumerate(known))
        self.orders = [push_order(strategy.consistency, pushes) for _ in self.parts]
        self.log: list[tuple[str, int, int]] = []
        self.inbox: SimpleQueue[Push | Leave | Exception] = SimpleQueue()
        # number of replies by part and pusher
        self.replies = [[0] * len(pushers) for _ in self.parts]
        self.listeners = [
            Listener(
                links,
                self.recorder,
                self.inbox,
                number,
                pusher[0],
                [part.new_push() for part in self.parts],
                self._rounds(number),
            )
            for number, pusher in enumerate(pushers)
        ]
        for listener in self.listeners:
            listener.start()

    def steps(self) -> Iterator[int]:
        """The numbers of the server's steps; units of work begin after the warm-up of all ranks."""
        warmup, units = warmup_steps(self.context.scenario), self.strategy.units
        yield from range(warmup)
        if units is not None:
            self.context.begin_run()
        yield from range(warmup, self._last_step + 1)

    @property
    def _last_step(self) -> int:
        units = self.strategy.units
        if units is None:
            return self.context.total_steps - 1
        return warmup_steps(self.context.scenario) + math.ceil(units / len(self.pushers)) - 1

    def _rounds(self, pusher: int) -> Iterator[int]:
        """The numbers of a pusher's pushes; then reports that it has left, where that was not known before."""
        yield from rounds(self.context.scenario, self.pushers[pusher][0], self.grants)
        if self.grants is not None:
            self.inbox.put(Leave(pusher))

    def step(self, index: int) -> None:
        """Serves the number of pushes that a step of all pushers has, in the order of arrival."""
        left = self._pushes_in(index) * len(self.parts)
        while left > 0 or (index == self._last_step and self.to_leave > 0):
            with self.recorder.span(Phase.WAIT):
                message = self.inbox.get()
            match message:
                case Push():
                    self._serve(message)
                    left -= 1
                case Leave():
                    self._leave(message.pusher)
                case _:
                    raise message
        if index == self._last_step:
            for listener in self.listeners:
                listener.join()

    def _pushes_in(self, index: int) -> int:
        """Number of pushes of each bucket in a step of the server."""
        units, pushers = self.strategy.units, len(self.pushers)
        if units is None or index < self._last_step:
            return pushers
        return units - pushers * (index - warmup_steps(self.context.scenario))

    def _leave(self, pusher: int) -> None:
        """Waits no longer for a pusher, and replies to those that have waited for it alone."""
        self.to_leave -= 1
        for number, order in enumerate(self.orders):
            order.leave(pusher)
            for waiting in order.release():
                self._reply(number, waiting)

    def _serve(self, push: Push) -> None:
        part, order = self.parts[push.part], self.orders[push.part]
        labels = self._labels(push.part, push.pusher)
        note_push(self.recorder, push.received, part, **labels)
        part.receive(push.pusher, self.listeners[push.pusher].buffers[push.part])
        if order.is_late(push.pusher):
            self._note("drop", push.part, push.pusher)
            order.replied(push.pusher)
            self._reply(push.part, push.pusher)
        else:
            with self.recorder.span(Phase.OPTIMIZER, **labels):
                self._note("add", push.part, push.pusher)
                order.add(push.pusher)
                part.add(self.listeners[push.pusher].buffers[push.part], len(self.pushers[push.pusher]))
        if order.is_due():
            self._update(push.part, order)

    def _update(self, number: int, order: PushOrder) -> None:
        part = self.parts[number]
        with self.recorder.span(Phase.OPTIMIZER, group=part.bucket, match=part.version):
            applied = part.update()
        self._note("update" if applied else "skip", number, -1)
        for pusher in order.release():
            self._reply(number, pusher)

    def _reply(self, number: int, pusher: int) -> None:
        """Sends the parameters while the server goes on; they take the buffer of the push that the reply is for."""
        self._note("reply", number, pusher)
        listener, part = self.listeners[pusher], self.parts[number]
        with self.recorder.span(Phase.SEND):
            reply = part.reply(pusher)
            listener.buffers[number][: len(reply)].copy_(reply)
        begin = self.recorder.now()
        labels = self._labels(number, pusher)
        self.recorder.add(Phase.SEND, begin, begin, stream=Stream.COMMUNICATION, size_bytes=part.reply_bytes, **labels)
        listener.reply(number, len(reply))
        self.replies[number][pusher] += 1

    def _labels(self, number: int, pusher: int) -> dict[str, int]:
        """Labels of the spans of a pusher's last push: its worker, bucket and number."""
        return {"peer": self.pushers[pusher][0], "group": self.parts[number].bucket, "match": self.replies[number][pusher]}

    def _note(self, what: str, number: int, pusher: int) -> None:
        self.log.append((what, self.parts[number].bucket, pusher))

    def notes(self) -> dict[str, Any]:
        """ranges: by bucket the server's parts of tensors, as (tensor, begin, end). log: as in the class."""
        ranges = {str(part.bucket): self.layout.ranges(part.bucket, self.number) for part in self.parts}
        return {"ranges": ranges, "log": self.log}
