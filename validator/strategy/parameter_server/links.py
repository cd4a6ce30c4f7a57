"""Links between workers and servers: the process group of each message, and a receiving thread for each pusher.

Gloo can receive from any rank, but then moves one message at a time; NCCL cannot. One thread per peer waits for its messages
with either library, so that messages move concurrently and are served in order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, product
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout import messages
from scaleproof.validator.strategy.layout.streams import own_stream

# A thread that has nothing left to do ends at once.
_JOIN_S: Final = 0.5
# Part of a GPU's processors that its waiting messages may take together, and most blocks of one message (NCCL_MAX_CTAS).
_WAITING_SHARE: Final = 0.25
_MOST_BLOCKS: Final = 32


class Push(NamedTuple):
    """A received gradient: who pushed it, and to which of the server's parts. received: mark of the arrival."""

    pusher: int
    part: int
    received: Any


class Leave(NamedTuple):
    """Notice that a pusher has made its last push."""

    pusher: int


class Links:
    """Sends and receives in the process group of two ranks.

    With NCCL each pair of ranks has one group per direction, as messages of a group wait for one another; gloo moves any number
    concurrently.
    """

    def __init__(self, leaders: Iterable[int], servers: Iterable[int], own: bool) -> None:
        """To be built on all ranks. own: whether each direction has a group of its own."""
        both = [pair for one in product(leaders, servers) for pair in (one, one[::-1])] if own else []
        self._groups = {pair: dist.new_group(list(pair), pg_options=_options(both)) for pair in both}
        self._rank = dist.get_rank()
        if own:
            self._connect()

    def _connect(self) -> None:
        """Lets each pair exchange a message, one pair after the other. NCCL creates a communicator with its first message, for
        which a rank must not wait while its device waits for messages of others."""
        on_gpus = dist.get_backend() == "nccl"
        token = torch.zeros(1, device=torch.device("cuda", torch.cuda.current_device()) if on_gpus else None)
        for source, target in self._groups:
            if self._rank == source:
                self.send(token, target).wait()
            elif self._rank == target:
                self.receive(token, source).wait()
        if on_gpus:
            torch.cuda.synchronize()

    def send(self, tensor: Tensor, target: int) -> dist.Work:
        """Starts to send `tensor` to the rank `target`."""
        return messages.send(tensor, target, self._groups.get((self._rank, target)))

    def receive(self, tensor: Tensor, source: int) -> dist.Work:
        """Starts to receive `tensor` from the rank `source`."""
        return messages.receive(tensor, source, self._groups.get((source, self._rank)))


def _options(pairs: Sequence[tuple[int, int]]) -> Any:
    """Options of the pairs' groups of NCCL: messages that wait for their peers leave most processors to other kernels."""
    if dist.get_backend() != "nccl":
        return None
    most_messages = max(Counter(chain(*pairs)).values())
    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = max(1, min(_MOST_BLOCKS, int(_WAITING_SHARE * processors / most_messages)))
    return options


class Arrivals(Thread):
    """Waits for the messages of one rank, in the order in which they were posted, and takes a mark when each arrives.

    A thread that waits for several ranks in turn could not do so.
    """

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        super().__init__(daemon=True)
        self._recorder = recorder
        self._stream = own_stream(device)
        self._posted: SimpleQueue[dist.Work | None] = SimpleQueue()
        self._arrived: SimpleQueue[tuple[Any, torch.cuda.Event | None] | Exception] = SimpleQueue()
        self.start()

    def post(self, message: dist.Work) -> None:
        """Queues a posted receive; its arrival is recorded in order."""
        self._posted.put(message)

    def next(self) -> Any:
        """Waits for the next message; returns the mark of its arrival. On a GPU the current stream waits for it."""
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        mark, event = arrived
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
        return mark

    def close(self) -> None:
        """Ends the thread after the posted messages; does not wait for messages that do not arrive."""
        self._posted.put(None)
        self.join(_JOIN_S)

    def run(self) -> None:
        """Waits for the posted messages in order, and marks their arrival."""
        with torch.cuda.stream(self._stream):
            while (message := self._posted.get()) is not None:
                try:
                    message.wait()
                    self._arrived.put((self._recorder.now(), self._stream.record_event() if self._stream else None))
                except Exception as error:
                    self._arrived.put(error)


class Listener(Thread):
    """Receives the pushes of one pusher, one after the other, and puts each into an inbox.

    buffers: one for each of the server's parts, in the order of pushes. A buffer first receives a push, then holds the reply.
    """

    def __init__(
        self, links: Links, recorder: Recorder, inbox: SimpleQueue[Push | Leave | Exception], pusher: int, leader: int,
        buffers: Sequence[Tensor], rounds: Iterable[int],
    ) -> None:  # fmt: skip
        """leader: the rank that pushes. rounds: numbers of its pushes of each part, from 0."""
        super().__init__(daemon=True)
        self.leader, self.buffers = leader, buffers
        self._links, self._recorder, self._inbox, self._pusher, self._rounds = links, recorder, inbox, pusher, rounds
        self._replies: list[SimpleQueue[dist.Work]] = [SimpleQueue() for _ in buffers]
        # elements of the replies to parts that are not sent yet, and the number of replies sent
        self._unsent: dict[int, int] = {}
        self._sent = 0

    def reply(self, part: int, elements: int) -> None:
        """Sends the first elements of the part's buffer once the replies to earlier pushes are sent, in the order in which the
        pusher receives them."""
        self._unsent[part] = elements
        while (first := self._sent % len(self.buffers)) in self._unsent:
            reply = self.buffers[first][: self._unsent.pop(first)]
            self._replies[first].put(self._links.send(reply, self.leader))
            self._sent += 1

    def run(self) -> None:
        """Receives pushes and sends replies until the pusher's last push; passes errors to the server."""
        try:
            # on a GPU, waiting for a message must not delay kernels that other threads have launched
            device = self.buffers[0].device if self.buffers else torch.device("cpu")
            # a new thread starts on the first GPU
            stream = own_stream(device)
            with torch.cuda.stream(stream):
                self._listen(stream)
        except Exception as error:
            self._inbox.put(error)

    def _listen(self, stream: torch.cuda.Stream | None) -> None:
        for number in self._rounds:
            for part, buffer in enumerate(self.buffers):
                if number > 0:
                    _finish(self._replies[part].get(), stream)
                _finish(self._links.receive(buffer, self.leader), stream)
                self._inbox.put(Push(self._pusher, part, self._recorder.now()))
        for replies in self._replies:
            _finish(replies.get(), stream)


def _finish(work: dist.Work, stream: torch.cuda.Stream | None) -> None:
    """Returns once the message is complete; NCCL's `wait` makes only the stream wait."""
    work.wait()
    if stream is not None:
        stream.synchronize()
