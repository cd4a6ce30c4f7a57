"""Streams and events of the GPU that does not exist: what waits for what is recorded, and nothing waits."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Self

import torch

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.trace import RankTrace

_CUDA = 1


class StreamBase:
    """A stream. Subclasses have a trace and a device, see `stream_types`."""

    trace: RankTrace
    index: int
    numbers: itertools.count[int]

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **_: Any) -> None:
        self.stream_id = next(self.numbers) if stream_id is None else stream_id
        self.priority, self.device_index, self.device_type = priority, self.index, _CUDA
        self.device = torch.device("cuda", self.index)
        self.cuda_stream = self.stream_id
        self._before: list[int] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -5

    def wait_event(self, event: EventBase) -> None:
        """Makes this stream wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: StreamBase) -> None:
        """Makes this stream wait for another one."""
        self.trace.add(EventKind.STREAM_WAIT, stream=self.stream_id, other_stream=stream.stream_id)

    def record_event(self, event: Any = None) -> Any:
        """Records an event on this stream."""
        new_event: Any = torch.cuda.Event
        event = event if event is not None else new_event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Makes the host wait for this stream."""
        self.trace.add(EventKind.SYNCHRONIZE, other_stream=self.stream_id)

    def query(self) -> bool:
        """Whether all work is complete: always."""
        return True

    def is_capturing(self) -> bool:
        """Whether its work is captured to a graph: never."""
        return False

    def __enter__(self) -> Self:
        self._before.append(self.trace.context.stream)
        self.trace.context.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        self.trace.context.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class EventBase:
    """An event. Subclasses have a trace and a device, see `stream_types`."""

    trace: RankTrace
    index: int
    numbers: itertools.count[int]

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any) -> None:
        self.enable_timing = enable_timing
        self.event_id = next(self.numbers)
        self.device = torch.device("cuda", self.index)

    def record(self, stream: Any = None) -> None:
        """Records this event on a stream."""
        number = stream.stream_id if stream is not None else self.trace.context.stream
        # another number each time, since waits are for the last record
        self.event_id = next(self.numbers)
        self.trace.add(EventKind.EVENT_RECORD, stream=number, event=self.event_id)

    def wait(self, stream: Any = None) -> None:
        """Makes a stream wait for this event."""
        number = stream.stream_id if stream is not None else self.trace.context.stream
        self.trace.add(EventKind.EVENT_WAIT, stream=number, event=self.event_id)

    def synchronize(self) -> None:
        """Makes the host wait for this event."""
        self.trace.add(EventKind.SYNCHRONIZE, event=self.event_id)

    def query(self) -> bool:
        """Whether the event has happened: always."""
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two events: an invented value."""
        self.trace.answer("torch.cuda.Event.elapsed_time", "1 ms")
        return 1.0


def stream_types(trace: RankTrace, index: int) -> tuple[type[StreamBase], type[EventBase]]:
    """Types of streams and events of a device, which record in a trace."""
    shared = {"trace": trace, "index": index}
    stream = type("Stream", (StreamBase,), shared | {"numbers": itertools.count(1)})
    event = type("Event", (EventBase,), shared | {"numbers": itertools.count(1)})
    return stream, event


@contextlib.contextmanager
def on_stream(trace: RankTrace, stream: Any) -> Iterator[None]:
    """Makes a stream the current one of this thread; None changes nothing."""
    before = trace.context.stream
    if stream is not None:
        trace.context.stream = stream.stream_id
    try:
        yield
    finally:
        trace.context.stream = before
