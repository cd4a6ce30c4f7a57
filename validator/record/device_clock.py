"""Marks: moments in a rank's work, which a device's clock tells in seconds once the device has come past them.

On the CPU a mark is the time itself. A GPU works behind the host's back: a mark is an event in the order of its work, and
nobody waits for it until training is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from scaleproof.validator.record.clock_correction import Correction, Reading, between

_ANCHOR_ROUNDS: Final = 8


class DeviceClock(Protocol):
    """Tells when a device did what, in seconds of time.perf_counter."""

    def mark(self) -> Any:
        """The moment when the device is done with all that it was told so far."""

    def passed(self, marks: Iterable[Any]) -> bool:
        """Whether the device has come past all of them. Never waits."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """When the device came past each; the last one is the latest."""

    def finish(self) -> Correction | None:
        """Waits until the device has come past all marks; what to correct their seconds by, now that it is known."""


class CpuClock:
    """The host's own: what was told is done when the host goes on."""

    def __init__(self) -> None:
        self.mark: Final = time.perf_counter

    def passed(self, _: Iterable[float]) -> bool:
        return True

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return list(marks)

    def finish(self) -> None:
        return None


class DeviceEvent(Protocol):
    """What is used of torch.cuda.Event: `record` puts it into the current stream."""

    def record(self) -> object: ...
    def query(self) -> bool: ...
    def synchronize(self) -> object: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class CudaClock:
    """A GPU's: events on the stream that is current where the mark is taken.

    A collective of NCCL runs on a stream of its own. In a callback of its future torch makes a stream current that waits for
    it, so that a mark taken there is when the collective was over on the device, while the host is elsewhere.

    The GPU's clock is read together with the host's before training and after it; in between it is taken to run evenly. Each
    step's marks are told from the end of the step before, as events tell milliseconds in 32 bits. Events are used again once
    nobody holds their mark.
    """

    def __init__(self, new_event: Callable[[], DeviceEvent], synchronize: Callable[[], object]) -> None:
        self._new_event = new_event
        self._synchronize = synchronize
        self._free: list[DeviceEvent] = []
        self._synchronize()
        self._last, at_s, width_s = self._anchored()
        self._last.at_s = at_s
        self._began: Final = Reading(at_s, 0.0, width_s / 2)

    def mark(self) -> _Mark:
        try:
            event = self._free.pop()
        except IndexError:
            event = self._new_event()
        event.record()
        return _Mark(event, self._free)

    def passed(self, marks: Iterable[_Mark]) -> bool:
        return all(mark.at_s is not None or mark.event.query() for mark in marks)

    def seconds(self, marks: Sequence[_Mark]) -> list[float]:
        told_s = [self._told_s(mark) for mark in marks]
        self._last = marks[-1]
        return told_s

    def finish(self) -> Correction:
        self._synchronize()
        anchor, host_s, width_s = self._anchored()
        device_s = self._told_s(anchor)
        return between(self._began, Reading(device_s, host_s - device_s, width_s / 2))

    def _told_s(self, mark: _Mark) -> float:
        """A mark that is noted in two steps is told once."""
        if mark.at_s is None:
            assert self._last.at_s is not None, "what others are told from was told before"
            mark.at_s = self._last.at_s + self._last.event.elapsed_time(mark.event) * 1e-3
        return mark.at_s

    def _anchored(self) -> tuple[_Mark, float, float]:
        """A mark of an idle device, when the host passed it, and how long the host was about it: the fastest of several."""
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
    """An event, and when it was once that is known. The event is free again when the mark is gone."""

    __slots__ = ("_free", "at_s", "event")

    def __init__(self, event: DeviceEvent, free: list[DeviceEvent]) -> None:
        self.event = event
        self.at_s: float | None = None
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.event)
