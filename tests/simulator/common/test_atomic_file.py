"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from scaleproof.simulator.common.atomic_file import write_atomically


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_a_file_is_written_into_a_new_folder(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "file.txt", b"first")
    write_atomically(tmp_path / "new" / "file.txt", b"second")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "new").iterdir()] == [("file.txt", b"second")]


def test_a_folder_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsADirectoryError):
        write_atomically(Path(), b"content")
    assert list(tmp_path.iterdir()) == []


def test_only_what_ended_processes_of_this_machine_left_is_deleted(tmp_path: Path, ended: int) -> None:
    left = tmp_path / f".part-7.parquet.{platform.node()}.{ended}.part"
    kept = [
        tmp_path / f".part-8.parquet.{platform.node()}.{os.getppid()}.part",
        tmp_path / f".part-8.parquet.another-machine.{ended}.part",
        tmp_path / ".users-own.part",
    ]
    for path in (left, *kept):
        path.write_bytes(b"half")
    write_atomically(tmp_path / "file.txt", b"whole")
    assert not left.exists()
    assert all(path.exists() for path in kept)


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "file.txt"
    folder.mkdir()
    with pytest.raises(OSError, match=r"file\.txt"):
        write_atomically(folder, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]
