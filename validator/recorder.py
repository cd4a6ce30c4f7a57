"""The recorder: notes what a rank does and when, at a cost of microseconds.

Times are those of time.perf_counter, which on Linux is the same clock for all processes of one machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from simulator.run import Phase, Stream
from validator import status
from validator.status import Status

# A span as a rank sees it. peer, group and match say what it belongs to on other ranks: spans with equal (step, match) that
# name each other as peer are the two sides of one message; collectives of equal (step, group, match) are one collective.
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
    ]
)
# A row that ends a step: its end_s is when the rank was done with it, and rows of steps without one are not complete.
END_OF_STEP: Final = -1


class Recorder:
    """Collects a rank's spans and hands each finished step to `sink` as RAW_SPAN bytes.

    clock: seconds, once all work that was begun on the device is done.
    """

    def __init__(
        self, own_status: Status, sink: Callable[[bytes], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.now: Final = clock
        self.enter: Final = own_status.enter
        self._status = own_status
        self._sink = sink
        self._step = 0
        self._rows: list[tuple[Any, ...]] = []

    def begin_step(self, step: int) -> None:
        """Spans belong to `step` from now on: steady steps are 1, 2, …, warm-up steps 0 and below."""
        self._step = step
        self._status.begin_step(step)

    def end_step(self) -> None:
        """The rank is done with the step; its spans are out of the process before the next begins."""
        end_s = self.now()
        self._rows.append((self._step, Stream.MAIN, END_OF_STEP, -1, -1, end_s, end_s, end_s, 0.0, -1, -1, -1))
        self._sink(np.array(self._rows, dtype=RAW_SPAN).tobytes())
        self._rows.clear()

    def add(
        self,
        phase: Phase,
        arrival_s: float,
        end_s: float,
        *,
        start_s: float | None = None,
        stream: Stream = Stream.MAIN,
        stage: int = -1,
        microbatch: int = -1,
        size_bytes: float = 0.0,
        peer: int = -1,
        group: int = -1,
        match: int = -1,
    ) -> None:
        """Notes a span whose times are known. start_s: its arrival unless given."""
        start_s = arrival_s if start_s is None else start_s
        times_s = (arrival_s, start_s, end_s)
        self._rows.append((self._step, stream, phase, stage, microbatch, *times_s, size_bytes, peer, group, match))

    def span(self, phase: Phase, **labels: Any) -> _Span:
        """A context that is one span on the main stream; labels as `add` has them."""
        return _Span(self, phase, labels)


class _Span:
    __slots__ = ("_begin_s", "_labels", "_phase", "_recorder")

    def __init__(self, recorder: Recorder, phase: Phase, labels: dict[str, Any]) -> None:
        self._recorder = recorder
        self._phase = phase
        self._labels = labels

    def __enter__(self) -> None:
        self._recorder.enter(self._phase)
        self._begin_s = self._recorder.now()

    def __exit__(self, error: object, *_: object) -> None:
        # after an error the status keeps the phase in which it happened
        if error is None:
            self._recorder.add(self._phase, self._begin_s, self._recorder.now(), **self._labels)
            self._recorder.enter(status.BETWEEN_PHASES)
