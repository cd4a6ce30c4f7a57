"""Device times in spans, while the host runs ahead of the device and never waits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.record import device_clock
from scaleproof.validator.record.clock_correction import Correction
from scaleproof.validator.record.device_clock import CudaClock
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN, Recorder
from scaleproof.validator.record.status_board import Board, Status

DRIFT = 80e-6
CALL_S = 2e-6


class Device:
    """A device that does its work behind the host's back, with a clock of its own; the host's time passes call by call."""

    def __init__(self) -> None:
        self.host_s = 90_000.0
        self.done_s = 0.0
        self.waits = 0
        self.events: list[Event] = []

    def perf_counter(self) -> float:
        self.host_s += CALL_S
        return self.host_s

    def work(self, seconds: float) -> float:
        """Enqueues work of a duration on the device; returns its end time."""
        self.host_s += CALL_S
        self.done_s = max(self.done_s, self.host_s) + seconds
        return self.done_s

    def synchronize(self) -> None:
        self.waits += 1
        self.host_s = max(self.host_s, self.done_s) + CALL_S

    def new_event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_s = np.inf

    def record(self, _: None) -> None:
        self.at_s = max(self.device.done_s, self.device.perf_counter())

    def query(self) -> bool:
        return self.at_s <= self.device.perf_counter()

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.host_s = max(self.device.host_s, self.at_s) + CALL_S

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds in 32 bits by a clock that strays, as CUDA reports them; only for completed events."""
        assert max(self.at_s, end_event.at_s) <= self.device.host_s, "the time of an incomplete event cannot be read"
        return float(np.float32((end_event.at_s - self.at_s) * (1 + DRIFT) * 1e3))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    fake = Device()
    monkeypatch.setattr(device_clock.time, "perf_counter", fake.perf_counter)
    yield fake
    monkeypatch.undo()


class Training:
    """A recorder of a device's steps, and when they truly were."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.boundary_elements: list[bytes] = []
        clock = CudaClock(device.new_event, device.synchronize, lambda: None)
        self.recorder = Recorder(Status(Board.private(), 0), self.boundary_elements.append, clock)
        self.true_s: list[tuple[float, float]] = []

    def step(self, number: int, seconds: float = 0.01, passes: int = 2) -> None:
        self.recorder.begin_step(number)
        for _ in range(passes):
            begin_s = max(self.device.done_s, self.device.host_s)
            with self.recorder.span(Phase.FORWARD):
                self.true_s.append((begin_s, self.device.work(seconds / passes)))
        self.recorder.end_step()

    def rows(self) -> NDArray[np.void]:
        return np.frombuffer(b"".join(self.boundary_elements), dtype=RAW_SPAN)

    def host_s_of(self, correction: Correction | None) -> NDArray[np.float64]:
        """Begin and end of each pass, corrected."""
        spans = self.rows()[self.rows()["phase"] == Phase.FORWARD]
        times_s = np.stack([spans["start_s"], spans["end_s"]], axis=1)
        return times_s if correction is None else np.asarray(correction.of(times_s))


def test_steps_are_emitted_after_the_device_finished_them(device: Device) -> None:
    training = Training(device)
    waits = device.waits

    for number in range(1, 6):
        training.step(number)
    assert training.boundary_elements == [], "the device has only begun"
    device.host_s += 0.025
    training.step(6)
    assert set(training.rows()["step"].tolist()) == {1, 2}
    assert device.waits == waits, "nobody waits for the device while it trains"

    training.recorder.finish()
    assert [int(step) for step in training.rows()["step"][training.rows()["phase"] == END_OF_STEP]] == [1, 2, 3, 4, 5, 6]


def test_device_times_are_converted_to_the_host_clock(device: Device) -> None:
    training = Training(device)
    for number in range(1, 2001):
        training.step(number, seconds=0.05)
        # the host does other things now and then
        device.host_s += 0.4 if number % 10 == 0 else 0.0

    correction = training.recorder.finish()

    assert correction is not None
    assert correction.drift == pytest.approx(-DRIFT, abs=correction.drift_uncertainty)
    assert correction.uncertainty_s < 20 * CALL_S
    assert np.abs(training.host_s_of(correction) - training.true_s).max() < correction.uncertainty_s + 5 * CALL_S
    assert np.abs(training.host_s_of(None) - training.true_s).max() > 1e-3, "without a correction the clocks part"


def test_events_are_reused(device: Device) -> None:
    training = Training(device)
    made = []
    for number in range(1, 200):
        training.step(number)
        device.host_s += 0.01
        made.append(len(device.events))

    assert made[-1] == made[20], "none is made in the steady state"


def test_marks_read_in_the_next_step_keep_their_time(device: Device) -> None:
    training = Training(device)
    begun_s = device.host_s
    begun = training.recorder.now()
    for number in range(1, 4):
        training.step(number)
        device.host_s += 0.05
    training.recorder.begin_step(4)
    training.recorder.add(Phase.SYNCHRONISE, begun, training.recorder.now(), stream=Stream.COMMUNICATION)
    training.recorder.end_step()

    training.recorder.finish()

    (late,) = training.rows()[training.rows()["phase"] == Phase.SYNCHRONISE]
    assert late["arrival_s"] == pytest.approx(begun_s, abs=10 * CALL_S + DRIFT)


def test_a_step_waits_for_unfinished_work_of_other_streams(device: Device) -> None:
    training = Training(device)
    training.recorder.begin_step(1)
    begin, end = training.recorder.now(), training.recorder.now()
    # a stream of its own that is done later than the main one
    end.event.at_s = device.host_s + 1.0
    training.recorder.add(Phase.SYNCHRONISE, begin, end, stream=Stream.COMMUNICATION)
    training.recorder.end_step()

    assert training.boundary_elements == []
    device.host_s += 1.0
    training.recorder.finish()

    assert training.rows()["end_s"][0] - training.rows()["arrival_s"][0] == pytest.approx(1.0, rel=1e-3)
