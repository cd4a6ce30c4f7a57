"""Ranks report where their script is, also while they wait in C++."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaleproof.validator.capture.playing.places import REQUEST, ReportedPlace, forget, read_places

SCRIPT = """
import sys, time
from pathlib import Path
from scaleproof.validator.capture.playing.places import PlaceReporter, hold_requests

def line(frame):
    while frame.f_code.co_name != "main":
        frame = frame.f_back
    return f"train.py:{frame.f_lineno}"

def main(ready):
    ready.touch()
    WAIT

hold_requests()
PlaceReporter(Path(sys.argv[1]), 3, line, lambda path: path == __file__, lambda: 2).install()
main(Path(sys.argv[1]) / "ready")
"""
# A lock that is taken twice, for which no signal stops the wait.
IN_C = "import ctypes; take, lock = ctypes.CDLL(None).pthread_mutex_lock, bytes(64); take(lock); take(lock)"

MAILBOX = "from scaleproof.validator.capture.communication.mailbox import Mailbox; Mailbox({}, 3).get('values', 1, 3)"


@pytest.mark.parametrize(
    ("wait", "does", "communicates"),
    [
        ("time.sleep(60)", "is in main", False),
        (IN_C, "is in main", False),
        ("__import__('subprocess').run(['sleep', '20'])", "subprocess.py:", False),
        (MAILBOX.format("Path(sys.argv[1])"), "waits for rank 1", True),
    ],
    ids=["in Python", "in C", "of a program", "of a rank"],
)
def test_a_rank_reports_its_line(wait: str, does: str, communicates: bool, tmp_path: Path) -> None:
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
        places: list[ReportedPlace] = []
        while not places:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            places = list(read_places(tmp_path))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (place,) = places
    line = "train.py:13"
    assert (place.rank, place.line, place.steps, place.communicates) == (3, line, 2, communicates)
    assert does in place.does, place
    assert place.text("train.py", 3).startswith(f"{line}: rank 3 ")


COMPILE = """
import os, sys, threading, time
from pathlib import Path
from scaleproof.validator.capture.playing.places import REQUEST, PlaceReporter, hold_requests, read_places
hold_requests()
import torch

def request():
    while True:
        os.kill(os.getpid(), REQUEST)
        time.sleep(0.001)

folder = Path(sys.argv[1])
PlaceReporter(folder, 0, lambda frame: "", lambda path: False, lambda: 0).install()
threading.Thread(target=request, daemon=True).start()
end_s = time.monotonic() + 6
while time.monotonic() < end_s:
    torch._dynamo.reset()
    block = torch.nn.TransformerEncoderLayer(8, 2, 8)
    torch.compile(block, backend="aot_eager")(torch.ones(2, 2, 8)).sum().backward()
print(*read_places(folder), flush=True)
# as players end, without the interpreter's end of threads
os._exit(0)
"""


@pytest.mark.full
def test_reports_do_not_disturb_the_compiler(tmp_path: Path) -> None:
    called = subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert called.returncode == 0, called.stderr
    assert "ReportedPlace(rank=0" in called.stdout


VARIABLES = """
import os, sys, time, weakref
from pathlib import Path
from scaleproof.validator.capture.playing.places import REQUEST, PlaceReporter, hold_requests, read_places

class Values:
    pass

def use(folder):
    values = Values()
    os.kill(os.getpid(), REQUEST)
    time.sleep(1)
    assert list(read_places(folder))
    return weakref.ref(values)

hold_requests()
folder = Path(sys.argv[1])
PlaceReporter(folder, 0, lambda frame: "", lambda path: False, lambda: 0).install()
values = use(folder)
end_s = time.monotonic() + 5
while values() and time.monotonic() < end_s:
    time.sleep(0.01)
print("kept" if values() else "free")
"""


def test_reports_do_not_keep_the_variables_of_functions_that_have_ended(tmp_path: Path) -> None:
    called = subprocess.run([sys.executable, "-c", VARIABLES, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert called.returncode == 0, called.stderr
    assert called.stdout.strip() == "free"
