"""Servers of parameter servers: hold parts of the parameters and update them with what workers push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.run.run import Phase, Stream
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.parameter_server.consistency import Turns, turns
from scaleproof.validator.strategy.parameter_server.links import Arrivals, Links, Listener, Push
from scaleproof.validator.strategy.parameter_server.parameter_layout import lay_out

Crews = Sequence[Sequence[int]]


class BucketShard:
    """What a server has of a bucket: the parameters, and the sum of the gradients that they are to be updated by.

    version: how often they were updated.
    """

    def __init__(self, context: Context, bucket: int, initial: Tensor) -> None:
        self.bucket = bucket
        self.version = 0
        self.value = nn.Parameter(initial.clone())
        self.size_bytes = float(initial.numel() * initial.element_size())
        self.optimizer = context.optimizer([self.value])
        self._sum: Tensor | None = None
        self._workers = 0

    def add(self, gradient: Tensor, workers: int) -> None:
        """Adds the sum of so many workers' gradients. The first since the last update is added to in place."""
        self._sum = gradient if self._sum is None else self._sum.add_(gradient)
        self._workers += workers

    def update(self) -> None:
        """Applies the mean of the workers' gradients."""
        assert self._sum is not None, "an update follows a push"
        self.value.grad = self._sum.div_(self._workers)
        self.optimizer.step()
        self.version += 1
        self.value.grad, self._sum, self._workers = None, None, 0


def note_push(recorder: Recorder, came: Any, part: BucketShard, **labels: int) -> None:
    """Only its worker knows when it began to send."""
    recorder.add(Phase.RECEIVE, came, came, stream=Stream.COMMUNICATION, size_bytes=part.size_bytes, **labels)


class Server(Trainer):
    """Has its part of each bucket, in the order in which those are pushed: the last layers' first."""

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, crews: Crews) -> None:
        super().__init__(context)
        self.strategy, self.links, self.crews = strategy, links, crews
        self.number = context.rank - strategy.workers
        layers = context.build_all()
        self.layout = lay_out(layers, strategy)
        vector = self.layout.vector([parameter for layer in layers.values() for parameter in layer.parameters()])
        numbered = [*enumerate(self.layout.buckets)][::-1]
        self.parts = [
            BucketShard(context, number, vector[b.parts[self.number]]) for number, b in numbered if self.number in b.parts
        ]

    def parameters(self) -> Mapping[str, Tensor]:
        values = [part.value.detach() for part in reversed(self.parts)]
        return {f"shard{self.number}": torch.cat(values)} if values else {}


class InStep(Server):
    """Updates once all have pushed. Sums are made in the order of ranks, whoever comes first, and so the same in every run."""

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, crews: Crews) -> None:
        super().__init__(context, strategy, links, crews)
        self.received = [[torch.empty_like(part.value) for _ in crews] for part in self.parts]
        self.arrivals = [Arrivals(self.recorder, context.device) for _ in crews]

    def step(self, index: int) -> None:
        for gradients in self.received:
            for crew, gradient, arrivals in zip(self.crews, gradients, self.arrivals, strict=True):
                arrivals.post(self.links.receive(gradient, crew[0]))
        sent: list[tuple[BucketShard, Any, list[dist.Work]]] = []
        for part, gradients in zip(self.parts, self.received, strict=True):
            for crew, gradient, arrivals in zip(self.crews, gradients, self.arrivals, strict=True):
                with self.recorder.span(Phase.WAIT):
                    came = arrivals.next()
                note_push(self.recorder, came, part, peer=crew[0], group=part.bucket, match=index)
                with self.recorder.span(Phase.OPTIMIZER):
                    part.add(gradient, len(crew))
            with self.recorder.span(Phase.OPTIMIZER):
                part.update()
            begin = self.recorder.now()
            sent.append((part, begin, [self.links.send(part.value.detach(), crew[0]) for crew in self.crews]))
        self._finish(index, sent)

    def close(self) -> None:
        for arrivals in self.arrivals:
            arrivals.close()

    def _finish(self, index: int, sent: Sequence[tuple[BucketShard, Any, list[dist.Work]]]) -> None:
        """Waits until all answers have been sent; those before the last went beside what followed."""
        self.recorder.enter(Phase.SEND)
        for part, begin, answers in sent:
            for answer in answers:
                answer.wait()
            self.recorder.add(
                Phase.SEND,
                begin,
                self.recorder.now(),
                stream=Stream.MAIN if part is self.parts[-1] else Stream.COMMUNICATION,
                size_bytes=part.size_bytes * len(self.crews),
                group=part.bucket,
                match=index,
            )


class Free(Server):
    """Serves pushes in the order in which they come, and answers each crew when the gate says so.

    A step is as many pushes as all crews make in one of theirs. log: what it did, for whom, of which bucket.
    """

    def __init__(self, context: Context, strategy: ParameterServer, links: Links, crews: Crews) -> None:
        super().__init__(context, strategy, links, crews)
        pushes = dict.fromkeys(range(len(crews)), context.total_steps)
        self.turns = [turns(strategy.gate, pushes) for _ in self.parts]
        self.log: list[tuple[str, int, int]] = []
        self.inbox: SimpleQueue[Push | Exception] = SimpleQueue()
        # by part and crew how many pushes were answered
        self.numbers = [[0] * len(crews) for _ in self.parts]
        self.listeners = [
            Listener(
                links,
                self.recorder,
                self.inbox,
                number,
                crew[0],
                [torch.empty_like(part.value.detach()) for part in self.parts],
                context.total_steps,
            )
            for number, crew in enumerate(crews)
        ]
        for listener in self.listeners:
            listener.start()

    def step(self, index: int) -> None:
        for _ in range(len(self.crews) * len(self.parts)):
            with self.recorder.span(Phase.WAIT):
                push = self.inbox.get()
            if isinstance(push, Exception):
                raise push
            self._serve(push)
        if index == self.context.total_steps - 1:
            for listener in self.listeners:
                listener.join()

    def _serve(self, push: Push) -> None:
        part, gate = self.parts[push.part], self.turns[push.part]
        labels = self._labels(push.part, push.crew)
        note_push(self.recorder, push.received, part, **labels)
        if gate.is_late(push.crew):
            self._note("drop", push.part, push.crew)
            gate.answered(push.crew)
            self._answer(push.part, push.crew)
        else:
            with self.recorder.span(Phase.OPTIMIZER, **labels):
                self._note("add", push.part, push.crew)
                gate.add(push.crew)
                part.add(self.listeners[push.crew].buffers[push.part], len(self.crews[push.crew]))
        if gate.is_due():
            self._update(push.part, gate)

    def _update(self, number: int, gate: Turns) -> None:
        self._note("update", number, -1)
        part = self.parts[number]
        with self.recorder.span(Phase.OPTIMIZER, group=part.bucket, match=part.version):
            part.update()
        for crew in gate.release():
            self._answer(number, crew)

    def _answer(self, number: int, crew: int) -> None:
        """Sends the parameters beside what follows; the push of the crew that is answered made room for them."""
        self._note("answer", number, crew)
        listener, part = self.listeners[crew], self.parts[number]
        with self.recorder.span(Phase.SEND):
            listener.buffers[number].copy_(part.value.detach())
        begin = self.recorder.now()
        labels = self._labels(number, crew)
        self.recorder.add(Phase.SEND, begin, begin, stream=Stream.COMMUNICATION, size_bytes=part.size_bytes, **labels)
        listener.answer(number)
        self.numbers[number][crew] += 1

    def _labels(self, number: int, crew: int) -> dict[str, int]:
        """Of spans of the push that a crew made last: which it is, of which bucket."""
        return {"peer": self.crews[crew][0], "group": self.parts[number].bucket, "match": self.numbers[number][crew]}

    def _note(self, what: str, number: int, crew: int) -> None:
        self.log.append((what, self.parts[number].bucket, crew))

    def notes(self) -> dict[str, Any]:
        """held: of each bucket the number of each tensor of which it has something, and from where to where. log: as above."""
        held = {str(part.bucket): self.layout.held(part.bucket, self.number) for part in self.parts}
        return {"held": held, "log": self.log}

    def parameters(self) -> Mapping[str, Tensor]:
        """Hands them to all workers once more, in the order in which they ask."""
        for worker in range(self.strategy.workers):
            for part in reversed(self.parts):
                dist.send(part.value.detach(), worker)
        return super().parameters()
