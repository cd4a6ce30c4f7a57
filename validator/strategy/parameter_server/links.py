"""Links between workers and servers: which process group a message takes, and a thread for each who pushes.

Gloo can receive from anybody, but then moves one message at a time, and NCCL cannot; a thread for each peer sleeps until its
message is there on either, so that messages move side by side and are served in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout import messages

# A thread that has nothing left to do ends at once.
_PATIENCE_S: Final = 0.5


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
        return messages.send(tensor, target, self._groups.get((self._rank, target)))

    def receive(self, tensor: Tensor, source: int) -> dist.Work:
        """Begins to receive."""
        return messages.receive(tensor, source, self._groups.get((source, self._rank)))


class Arrivals(Thread):
    """Waits for a rank's messages, in the order in which they were posted, and notes when each came: who waits for several
    ranks in turn cannot tell."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        super().__init__(daemon=True)
        self._recorder = recorder
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._posted: SimpleQueue[dist.Work | None] = SimpleQueue()
        self._come: SimpleQueue[tuple[Any, torch.cuda.Event | None] | Exception] = SimpleQueue()
        self.start()

    def post(self, message: dist.Work) -> None:
        self._posted.put(message)

    def next(self) -> Any:
        """The mark at which the next one came, once it has; on a GPU what follows waits for it."""
        come = self._come.get()
        if isinstance(come, Exception):
            raise come
        mark, event = come
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
        return mark

    def close(self) -> None:
        """Ends after what was posted; does not wait for messages that do not come."""
        self._posted.put(None)
        self.join(_PATIENCE_S)

    def run(self) -> None:
        with torch.cuda.stream(self._stream):
            while (message := self._posted.get()) is not None:
                try:
                    message.wait()
                    self._come.put((self._recorder.now(), self._stream.record_event() if self._stream else None))
                except Exception as error:
                    self._come.put(error)


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
            device = self.buffers[0].device if self.buffers else torch.device("cpu")
            # a new thread is on the first GPU until it is told otherwise
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
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
