"""Clocks of devices: marks in a device's work, converted to seconds once the device has passed them.

On the CPU a mark is the time itself. A GPU works asynchronously: a mark is an event in its stream of work, and the host does
not wait for it before training is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from scaleproof.validator.record.clock_correction import ClockReading, Correction, between

_ANCHOR_ROUNDS: Final = 8


class DeviceClock(Protocol):
    """Times of a device's work, in seconds of time.perf_counter."""

    def mark(self) -> Any:
        """A mark that the device passes when it has done all work given to it so far."""

    def passed(self, marks: Iterable[Any]) -> bool:
        """Whether the device has passed all of the marks. Never waits."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds at which the device passed each mark; the last mark must be the latest."""

    def finish(self) -> Correction | None:
        """Waits until the device has passed all marks; returns the correction of their seconds, if any."""


class CpuClock:
    """Clock of the host, which passes a mark when it takes it."""

    def __init__(self) -> None:
        self.mark: Final = time.perf_counter

    def passed(self, _: Iterable[float]) -> bool:
        """Always true: host marks have passed at once."""
        return True

    def seconds(self, marks: Sequence[float]) -> list[float]:
        """The marks themselves, which are host seconds."""
        return list(marks)

    def finish(self) -> None:
        """None: host times need no correction."""


class DeviceEvent(Protocol):
    """The used part of torch.cuda.Event."""

    def record(self, stream: Any) -> object:
        """Puts the event into a stream."""

    def query(self) -> bool:
        """Whether the stream has passed the event."""

    def synchronize(self) -> object:
        """Waits until the stream has passed the event."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


class CudaClock:
    """Clock of a GPU: a mark is an event on the stream of that GPU that is current when the mark is taken. In a thread of a
    library, such as gloo's, another GPU may be the current one.

    A collective of NCCL runs on a stream of its own. In a callback of its future torch makes a stream current that waits for
    it, so that a mark taken there is passed at the end of the collective on the device.

    The GPU's clock is read together with the host's before and after training, and assumed to run evenly in between. Each
    step's marks are timed from the end of the previous step, as events measure milliseconds in 32 bits. Events are reused once
    their marks are garbage collected.
    """

    def __init__(
        self, new_event: Callable[[], DeviceEvent], synchronize: Callable[[], object], stream: Callable[[], Any]
    ) -> None:
        """stream: returns the GPU's current stream."""
        self._new_event, self._stream = new_event, stream
        self._synchronize = synchronize
        self._free: list[DeviceEvent] = []
        self._synchronize()
        self._last, at_s, width_s = self._anchored()
        self._last.at_s = at_s
        self._began: Final = ClockReading(at_s, 0.0, width_s / 2)

    def mark(self) -> _Mark:
        """Records an event on the current stream."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._new_event()
        event.record(self._stream())
        return _Mark(event, self._free)

    def passed(self, marks: Iterable[_Mark]) -> bool:
        """Whether the device has reached all marks."""
        return all(mark.at_s is not None or mark.event.query() for mark in marks)

    def seconds(self, marks: Sequence[_Mark]) -> list[float]:
        """Device seconds of marks that have passed."""
        times_s = [self._seconds(mark) for mark in marks]
        self._last = marks[-1]
        return times_s

    def finish(self) -> Correction:
        """Waits for the device; the correction of its times to the host clock."""
        self._synchronize()
        anchor, host_s, width_s = self._anchored()
        device_s = self._seconds(anchor)
        return between(self._began, ClockReading(device_s, host_s - device_s, width_s / 2))

    def _seconds(self, mark: _Mark) -> float:
        """Time at which the device passed a mark, computed once, as a mark may belong to two steps."""
        if mark.at_s is None:
            assert self._last.at_s is not None, "the time of the previous step's end is known"
            mark.at_s = self._last.at_s + self._last.event.elapsed_time(mark.event) * 1e-3
        return mark.at_s

    def _anchored(self) -> tuple[_Mark, float, float]:
        """A mark of the idle device, its host time and the uncertainty's width in seconds: the fastest of several attempts."""
        anchors = []
        for number in range(_ANCHOR_ROUNDS):
            begin_s = time.perf_counter()
            mark = self.mark()
            mark.event.synchronize()
            end_s = time.perf_counter()
            anchors.append((end_s - begin_s, number, (begin_s + end_s) / 2, mark))
        width_s, _, at_s, mark = min(anchors)
        return mark, at_s, width_s


class _Mark:
    """An event, and its time once that is known. The event is reused when the mark is garbage collected."""

    __slots__ = ("_free", "at_s", "event")

    def __init__(self, event: DeviceEvent, free: list[DeviceEvent]) -> None:
        self.event = event
        self.at_s: float | None = None
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.event)
