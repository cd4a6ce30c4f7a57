"""Links between workers and servers: which process group a message takes, and a thread for each who pushes.

Gloo can receive from anybody, but then moves one message at a time, and NCCL cannot; a thread for each peer sleeps until its
message is there on either, so that messages move side by side and are served in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from validator.recorder import Recorder


class Push(NamedTuple):
    """A crew's gradient that has come, for which of the server's parts. received: a mark."""

    crew: int
    part: int
    received: Any


class Links:
    """The process group of messages from one rank to another. On NCCL each pair of ranks has one for each way, as messages of
    one group wait for one another; gloo takes any number side by side."""

    def __init__(self, leaders: Iterable[int], servers: Iterable[int], own: bool) -> None:
        """All ranks must build it. own: whether each way has a group of its own."""
        both = [pair for one in product(leaders, servers) for pair in (one, one[::-1])] if own else []
        self._groups = {pair: dist.new_group(list(pair)) for pair in both}
        self._rank = dist.get_rank()

    def send(self, tensor: Tensor, target: int) -> dist.Work:
        """Begins to send."""
        return _begun(dist.isend(tensor, target, group=self._groups.get((self._rank, target))))

    def receive(self, tensor: Tensor, source: int) -> dist.Work:
        """Begins to receive."""
        return _begun(dist.irecv(tensor, source, group=self._groups.get((source, self._rank))))


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "both ranks are in the group"
    return work


class Listener(Thread):
    """Receives a crew's pushes, one after the other, and hands each to an inbox.

    buffers: one for each of the server's parts, in the order in which they are pushed. One is received into again once the
    answer that it held is sent.
    """

    def __init__(
        self, links: Links, recorder: Recorder, inbox: SimpleQueue[Push | Exception], crew: int, leader: int,
        buffers: Sequence[Tensor], pushes: int,
    ) -> None:  # fmt: skip
        """leader: the rank that pushes. pushes: how often it does."""
        super().__init__(daemon=True)
        self.leader, self.buffers = leader, buffers
        self._links, self._recorder, self._inbox, self._crew, self._pushes = links, recorder, inbox, crew, pushes
        self._answers: list[SimpleQueue[dist.Work]] = [SimpleQueue() for _ in buffers]
        # parts that are answered but not sent, and how many were sent
        self._held: set[int] = set()
        self._sent = 0

    def answer(self, part: int) -> None:
        """Sends what the part's buffer holds, once those that were pushed before it are answered: the other side receives them
        in that order."""
        self._held.add(part)
        while (first := self._sent % len(self.buffers)) in self._held:
            self._held.remove(first)
            self._answers[first].put(self._links.send(self.buffers[first], self.leader))
            self._sent += 1

    def run(self) -> None:
        try:
            # on a GPU what waits for a message must not hold up what others have told the device to do
            stream = torch.cuda.Stream() if any(buffer.is_cuda for buffer in self.buffers) else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                self._listen(stream)
        except Exception as error:
            self._inbox.put(error)

    def _listen(self, stream: torch.cuda.Stream | None) -> None:
        for number in range(self._pushes):
            for part, buffer in enumerate(self.buffers):
                if number > 0:
                    _finish(self._answers[part].get(), stream)
                _finish(self._links.receive(buffer, self.leader), stream)
                self._inbox.put(Push(self._crew, part, self._recorder.now()))
        for answers in self._answers:
            _finish(answers.get(), stream)


def _finish(work: dist.Work, stream: torch.cuda.Stream | None) -> None:
    """Returns once the message has passed: waiting for NCCL's holds up the stream alone."""
    work.wait()
    if stream is not None:
        stream.synchronize()
