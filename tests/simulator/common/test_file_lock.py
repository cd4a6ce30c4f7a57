from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scaleproof
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.file_lock import locked_file, locked_folder
from tests.conftest import SMALL


def test_a_second_run_gets_a_one_line_error_naming_the_holder(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "out", "a sweep"), pytest.raises(InputError) as caught, locked_folder(tmp_path / "out", "x"):
        pass
    holder = f"a sweep (process {os.getpid()} on {socket.gethostname()}, since "
    assert str(caught.value).startswith(f"{tmp_path / 'out'}: {holder}")
    assert str(caught.value).endswith("writes to it; wait for its end, or choose another place")
    assert len(str(caught.value).splitlines()) == 1


def test_releasing_removes_the_lock_files(tmp_path: Path) -> None:
    for _ in range(2):
        with locked_folder(tmp_path, "one"), locked_file(tmp_path / "new" / "c.yaml", "another"):
            pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_waiting_ends_when_the_lock_is_released(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from scaleproof.simulator.common.file_lock import locked_file\n"
        "with locked_file(Path(sys.argv[1]), 'one'):\n    print('locked', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "f")], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match=f"process {other.pid} "), locked_file(tmp_path / "f", "another", patience_s=0.2):
            pass
        other.stdin.write("go\n")
        other.stdin.flush()
        with locked_file(tmp_path / "f", "another", patience_s=60.0):
            pass


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "locked").exists():
        time.sleep(0.02)
    with pytest.raises(InputError, match=f"process {process.pid} "), locked_folder(tmp_path, "another"):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / ".lock").exists()
    with locked_folder(tmp_path, "another"):
        pass


def _hold(folder: Path) -> None:
    with locked_folder(folder, "a sweep"):
        (folder / "locked").touch()
        time.sleep(600)


def _count(folder: Path, rounds: int) -> None:
    """Adds one to a number in a file, again and again."""
    for _ in range(rounds):
        with locked_file(folder / "count", "a test", patience_s=300.0):
            number = int((folder / "count").read_text())
            (folder / "count").write_text(str(number + 1))


@pytest.mark.full
def test_the_lock_is_mutually_exclusive(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_count, args=(tmp_path, 20)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert (tmp_path / "count").read_text() == "60"


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "resnet50-ring-or-servers", "--out", "out"],
        ["measure", "small.yaml", "--on", "local", "--out", "out"],
        ["reconcile", "small.yaml", "--on", "local", "--out", "out"],
        ["calibrate", "--out", "c.yaml"],
    ],
)
def test_long_commands_check_the_lock_before_they_begin(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    with locked_folder(Path("out"), "somebody"), locked_file(Path("c.yaml"), "somebody"):
        assert scaleproof.main(command) == 2
    printed = capsys.readouterr()
    assert f"somebody (process {os.getpid()} on " in printed.err
    assert len(printed.err.splitlines()) == 1
