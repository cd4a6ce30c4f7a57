"""The recorder keeps the spans of each step, at negligible cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN, Recorder
from scaleproof.validator.record.status_board import BETWEEN_PHASES, NO_STEP, STARTING, Activity, Board, Status


def recorder_into(steps: list[bytes], status: Status | None = None) -> Recorder:
    return Recorder(status or Status(Board.private(), 0), steps.append)


def test_each_step_is_emitted_when_it_ends() -> None:
    steps: list[bytes] = []
    recorder = recorder_into(steps)

    for step in (0, 1):
        began_s = time.perf_counter()
        recorder.begin_step(step)
        with recorder.span(Phase.FORWARD, microbatch=3, stage=2):
            time.sleep(0.01)
        recorder.end_step()

    assert len(steps) == 2
    forward, end = np.frombuffer(steps[1], dtype=RAW_SPAN)
    assert [forward[name] for name in ("step", "phase", "microbatch", "stage", "peer")] == [1, Phase.FORWARD, 3, 2, -1]
    assert forward["start_s"] == forward["arrival_s"]
    assert forward["end_s"] - forward["start_s"] >= 0.01
    assert end["phase"] == END_OF_STEP
    assert began_s <= forward["start_s"] <= forward["end_s"] <= end["end_s"] <= time.perf_counter()


def test_an_interrupted_pass_is_recorded_in_parts() -> None:
    steps: list[bytes] = []
    status = Status(Board.private(), 0)
    recorder = recorder_into(steps, status)
    recorder.begin_step(1)

    with recorder.span(Phase.FORWARD, microbatch=3), recorder.interruption(group=7, size_bytes=8.0):
        assert status.activity.phase == Phase.SYNCHRONISE
    with recorder.span(Phase.BACKWARD):
        pass
    recorder.end_step()

    rows = np.frombuffer(steps[0], dtype=RAW_SPAN)
    main = np.sort(rows[(rows["stream"] == Stream.MAIN) & (rows["phase"] != END_OF_STEP)], order=["arrival_s"])
    assert main["phase"].tolist() == [Phase.FORWARD, Phase.SYNCHRONISE, Phase.FORWARD, Phase.BACKWARD]
    assert (main["arrival_s"][1:3] == main["end_s"][:2]).all()
    assert main["microbatch"].tolist() == [3, -1, 3, -1]
    [moved] = rows[rows["stream"] == Stream.COMMUNICATION]
    assert [moved[name] for name in ("phase", "group", "size_bytes")] == [Phase.SYNCHRONISE, 7, 8.0]


def test_the_status_shows_the_phase_and_keeps_it_after_an_error() -> None:
    status = Status(Board.private(), 0)
    recorder = recorder_into([], status)
    recorder.begin_step(4)

    with recorder.span(Phase.BACKWARD):
        assert str(status.activity) == "backward of step 4"
    assert status.activity.phase == BETWEEN_PHASES
    with pytest.raises(ZeroDivisionError), recorder.span(Phase.OPTIMIZER):
        _ = 1 / 0

    assert str(status.activity) == "optimizer of step 4"


def test_a_status_board_is_shared_between_processes(tmp_path: Path) -> None:
    mine = Board.create(tmp_path / "board", ranks=3)
    theirs = Board.open(tmp_path / "board")
    began_s = time.monotonic()

    Status(theirs, 2).begin_step(5)

    assert mine.read(1).phase == STARTING
    assert mine.read(2)[:2] == (BETWEEN_PHASES, 5)
    assert began_s <= mine.read(2).since_s <= time.monotonic()


@pytest.mark.parametrize(
    ("phase", "step", "text"),
    [
        (Phase.WAIT, 2, "wait of step 2"),
        (Phase.FORWARD, 0, "forward of a warm-up step"),
        (STARTING, NO_STEP, "start-up"),
        (BETWEEN_PHASES, NO_STEP, "its work"),
    ],
)
def test_an_activity_is_formatted_as_text(phase: int, step: int, text: str) -> None:
    activity = Activity(phase=phase, step=step, since_s=0.0)

    assert str(activity) == text
    assert activity.waits_for_others == (phase == Phase.WAIT)


def test_a_reader_never_sees_a_partial_record(tmp_path: Path) -> None:
    begin_s = time.monotonic()
    board = Board.create(tmp_path / "board", ranks=1)
    code = (
        "import sys, time; from pathlib import Path; from scaleproof.validator.record.status_board import Board, Status\n"
        "status = Status(Board.open(Path(sys.argv[1])), 0); until_s = time.monotonic() + 0.5\n"
        "while time.monotonic() < until_s: status.enter(0); status.enter(6)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "board")], env=environment) as writer:
        while writer.poll() is None:
            activity = board.read(0)
            assert begin_s <= activity.since_s <= time.monotonic()
            assert activity.phase in (STARTING, 0, 6)

    assert writer.returncode == 0
    assert board.read(0).phase == Phase.WAIT
