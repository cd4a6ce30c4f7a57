"""Ranks report where their script is, also while they wait in C++."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaleproof.validator.capture.places import REQUEST, forget, read_places

SCRIPT = """
import sys, time
from pathlib import Path
from scaleproof.validator.capture.places import PlaceReporter

def line():
    frame = sys._getframe()
    while frame.f_code.co_name != "main":
        frame = frame.f_back
    return f"train.py:{frame.f_lineno}"

def main(ready):
    ready.touch()
    WAIT

PlaceReporter(Path(sys.argv[1]), 3, line, lambda: 2).install()
main(Path(sys.argv[1]) / "ready")
"""
# A lock that is taken twice, for which no signal stops the wait.
IN_C = "import ctypes; take, lock = ctypes.CDLL(None).pthread_mutex_lock, bytes(64); take(lock); take(lock)"


@pytest.mark.parametrize(
    ("wait", "line", "does", "steps"),
    [("time.sleep(60)", "train.py:14", "is in main", 2), (IN_C, "train.py:14", "is in main", None)],
    ids=["in Python", "in C"],
)
def test_a_rank_reports_its_line(wait: str, line: str, does: str, steps: int | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("WAIT", wait))
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        time.sleep(0.2)
        forget(tmp_path)
        os.kill(process.pid, REQUEST)
        places = []
        while not places:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            places = list(read_places(tmp_path, lambda path: path == str(script)))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (place,) = places
    assert (place.rank, place.line, place.steps) == (3, line, steps)
    assert does in place.does, place
    assert place.text("train.py", 3).startswith(f"{line}: rank 3 ")
