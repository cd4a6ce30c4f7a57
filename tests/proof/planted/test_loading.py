"""Late ranks wait in the steps and before the phase that are given, and waiting for input is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.proof.planted.kinds import Lateness
from scaleproof.proof.planted.loading import make_late
from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.record.recorder import RAW_SPAN, Recorder
from scaleproof.validator.record.status_board import Board, Status

LATE_S = 0.01


@pytest.mark.parametrize(("late", "waits"), [(Lateness(LATE_S), 4), (Lateness(LATE_S, 2), 2)])
def test_late_input_is_recorded(late: Lateness, waits: int) -> None:
    rows = _recorded(late)
    inputs = rows[rows["phase"] == Phase.INPUT]
    assert len(inputs) == waits
    assert min(inputs["end_s"] - inputs["arrival_s"]) >= LATE_S


def test_a_late_phase_begins_after_a_gap() -> None:
    rows = _recorded(Lateness(LATE_S, before=Phase.BACKWARD))
    assert Phase.INPUT not in rows["phase"]
    ends_s, begins_s = rows["end_s"][rows["phase"] == Phase.FORWARD], rows["arrival_s"][rows["phase"] == Phase.BACKWARD]
    assert min(begins_s - ends_s) >= LATE_S


def _recorded(late: Lateness) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    class Late(Recorder):
        pass

    make_late(Late, late)
    kept: list[bytes] = []
    recorder = Late(Status(Board.private(), 0), kept.append)
    for step in range(1, 5):
        recorder.begin_step(step)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            with recorder.span(phase):
                pass
        recorder.end_step()
    return np.frombuffer(b"".join(kept), dtype=RAW_SPAN)
