"""The recorder of a rank's spans, at a cost of microseconds per span."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Stream
from scaleproof.validator.record import status_board
from scaleproof.validator.record.clock_correction import Correction
from scaleproof.validator.record.device_clock import CpuClock, DeviceClock
from scaleproof.validator.record.status_board import Status

# A span as a rank records it. peer, group and match identify its counterparts on other ranks: spans with equal (step, match)
# that are each other's peer are the two sides of one message; spans with equal (step, group, match) are one collective.
# communication: its dimension and collective as in `Spans`, −1 where the recorder does not know it.
RAW_SPAN: Final = np.dtype(
    [
        ("step", np.int32),
        ("stream", np.int8),
        ("phase", np.int8),
        ("stage", np.int32),
        ("microbatch", np.int32),
        ("arrival_s", np.float64),
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("size_bytes", np.float64),
        ("peer", np.int32),
        ("group", np.int32),
        ("match", np.int32),
        ("communication", np.int16),
    ]
)
# Fields of a row with its three times.
_TIMES: Final = slice(5, 8)
# Phase of a row that marks the end of a step at its end_s; steps without such a row are incomplete.
END_OF_STEP: Final = -1
_PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Recorder:
    """Collects a rank's spans and passes each finished step to `sink` as RAW_SPAN bytes.

    now: returns a mark of the current time, to be used only as one of a span's times. clock: converts marks to seconds.
    """

    def __init__(self, own_status: Status, sink: Callable[[bytes], object], clock: DeviceClock | None = None) -> None:
        self._clock: Final = CpuClock() if clock is None else clock
        self.now: Final[Callable[[], Any]] = self._clock.mark
        self._status = own_status
        # number of phases that the rank has entered; what interrupts a phase does not count
        self.entered = 0
        # called with the begin (of time.perf_counter) of each span of compute, before its end is recorded
        self.lengthen: Callable[[float], object] | None = None
        self._entered_s = 0.0
        # the mark at the end of the last backward pass
        self.passed: Any = 0.0
        self._sink = sink
        self._step = 0
        self._rows: list[tuple[Any, ...]] = []
        self._interruptions: list[tuple[Any, Any]] = []
        self._ended: deque[list[tuple[Any, ...]]] = deque()

    def enter(self, phase: int) -> None:
        """Reports that the rank is in `phase` from now on."""
        self.entered += 1
        self._entered_s = time.perf_counter()
        self._status.enter(phase)

    def lengthen_compute(self) -> None:
        """Lengthens the span of compute that began when the current phase was entered, if the rank is to be slower."""
        if self.lengthen is not None:
            self.lengthen(self._entered_s)

    def begin_step(self, step: int) -> None:
        """Begins `step`, to which the following spans belong: measured steps are 1, 2, …, warm-up steps 0 and below."""
        self._step = step
        self._interruptions.clear()
        self._status.begin_step(step)

    def end_step(self) -> None:
        """Ends the step, whose work the device has been given. Passes on all steps that the device has finished."""
        self.add(END_OF_STEP, *(self.now(),) * 2)
        self._ended.append(self._rows)
        self._rows = []
        self._flush()

    def forget_interruptions(self) -> None:
        """Forgets interruptions that belong to no pass."""
        self._interruptions.clear()

    def finish(self) -> Correction | None:
        """Waits for the device and passes on the remaining steps; returns the correction of all times, if any."""
        correction = self._clock.finish()
        self._flush()
        return correction

    def add(
        self,
        phase: int,
        arrival_s: Any,
        end_s: Any,
        *,
        start_s: Any = None,
        stream: Stream = Stream.MAIN,
        stage: int = -1,
        microbatch: int = -1,
        size_bytes: float = 0.0,
        peer: int = -1,
        group: int = -1,
        match: int = -1,
    ) -> None:
        """Records a span whose times are marks. start_s: its arrival if None."""
        if phase == Phase.BACKWARD:
            self.passed = end_s
        if phase in _PASSES:
            for begins_s, ends_s in self._interruptions:
                times_s = (arrival_s, arrival_s, begins_s)
                self._rows.append((self._step, stream, phase, stage, microbatch, *times_s, 0.0, -1, -1, -1, -1))
                arrival_s = ends_s
            self._interruptions.clear()
        start_s = arrival_s if start_s is None else start_s
        times_s = (arrival_s, start_s, end_s)
        self._rows.append((self._step, stream, phase, stage, microbatch, *times_s, size_bytes, peer, group, match, -1))

    @contextmanager
    def interruption(self, **labels: Any) -> Iterator[None]:
        """A context that is one collective within a pass, whose span is recorded in pieces around it."""
        begin_s = self.now()
        with self.waiting(begin_s):
            yield
        self.add(Phase.SYNCHRONISE, begin_s, self._interruptions[-1][1], stream=Stream.COMMUNICATION, **labels)

    @contextmanager
    def waiting(self, begin_s: Any) -> Iterator[None]:
        """A context in which the rank waits for a collective since `begin_s`; interrupts the span of the current pass."""
        phase = self._status.activity.phase
        self._status.enter(Phase.SYNCHRONISE)
        yield
        end_s = self.now()
        self._status.enter(phase)
        self.add(Phase.SYNCHRONISE, begin_s, end_s)
        self._interruptions.append((begin_s, end_s))

    def span(self, phase: Phase, **labels: Any) -> _RecordedSpan:
        """A context that is one span on the main stream; labels: keyword arguments of `add`."""
        return _RecordedSpan(self, phase, labels)

    def _flush(self) -> None:
        """Passes the steps that the device has finished to the sink, in order."""
        while self._ended:
            rows = self._ended[0]
            marks = [mark for row in rows for mark in row[_TIMES]]
            # the step's end is its last mark, and if it has not been passed the others need not be checked
            if not (self._clock.passed(marks[-1:]) and self._clock.passed(marks)):
                return
            self._ended.popleft()
            seconds = self._clock.seconds(marks)
            times_s = zip(seconds[::3], seconds[1::3], seconds[2::3], strict=True)
            timed = [(*row[:5], *row_s, *row[8:]) for row, row_s in zip(rows, times_s, strict=True)]
            self._sink(np.array(timed, dtype=RAW_SPAN).tobytes())


class _RecordedSpan:
    __slots__ = ("_begin_s", "_labels", "_phase", "_recorder")

    def __init__(self, recorder: Recorder, phase: Phase, labels: dict[str, Any]) -> None:
        self._recorder = recorder
        self._phase = phase
        self._labels = labels

    def __enter__(self) -> None:
        if self._phase == Phase.OPTIMIZER:
            self._recorder.forget_interruptions()
        self._recorder.enter(self._phase)
        self._begin_s = self._recorder.now()

    def __exit__(self, error: object, *_: object) -> None:
        # after an error the status keeps the phase in which it occurred
        if error is None:
            if self._phase in COMPUTE_PHASES:
                self._recorder.lengthen_compute()
            self._recorder.add(self._phase, self._begin_s, self._recorder.now(), **self._labels)
            self._recorder.enter(status_board.BETWEEN_PHASES)
