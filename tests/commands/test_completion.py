"""The scripts that complete commands in bash, zsh and fish, run by these shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import scaleproof

# What is typed before the Tab key, and the last word after it.
_COMPLETED: Final = {
    "scaleproof pre": "predict",
    "scaleproof predict resnet50-ri": "resnet50-ring-p100",
    "scaleproof plan resnet50-ring-p100 --obj": "--objective",
    "scaleproof plan resnet50-ring-p100 --objective en": "energy",
    "scaleproof collective allreduce --cluster dgx-h1": "dgx-h100",
    "scaleproof import kern": "kernels",
    "scaleproof import kernels --li": "--like",
    "scaleproof cluster diff dgx-h1": "dgx-h100",
    "scaleproof report resul": "results/",
    "scaleproof predict resnet50-ring-p100 --out resul": "results/",
}
_LIMIT_S: Final = 30.0
# Keys that complete the line, and that print and clear it.
_TAB: Final = "\t"
_PRINT: Final = "\x14"
_BASH: Final = """\
PS1='> '
print_line() { echo "<$READLINE_LINE>"; READLINE_LINE=; }
bind -x '"\\C-t": print_line'
echo "<>"
"""
_ZSH: Final = """\
PS1='> '
print_line() { print -r -- "<$BUFFER>"; BUFFER=; zle redisplay; }
zle -N print_line
bindkey '^T' print_line
print "<>"
"""


def _command(shell: str, *arguments: str) -> list[str]:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return [found, *arguments]


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert scaleproof.main(["completion", shell]) == 0
    return capsys.readouterr().out


def _typed(command: list[str], folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The last word of an interactive shell's line after each of the lines of _COMPLETED and the Tab key."""
    (folder / "results").mkdir()
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder), **variables}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment, start_new_session=True)
    os.close(its)
    try:
        _printed(ours)
        found = {}
        for line in _COMPLETED:
            os.write(ours, (line + _TAB + _PRINT).encode())
            found[line] = _printed(ours).split()[-1]
        return found
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _printed(terminal: int) -> str:
    """The next text between angle brackets that a terminal shows."""
    shown, end_s = "", time.monotonic() + _LIMIT_S
    while ">" not in shown.partition("<")[2]:
        ready, _, _ = select.select([terminal], [], [], end_s - time.monotonic())
        assert ready, f"the shell shows nothing but {shown!r}"
        shown += os.read(terminal, 65536).decode()
    return shown.partition("<")[2].partition(">")[0]


def test_bash_completes_commands_names_options_values_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rc").write_text(_script("bash", capsys) + _BASH)
    assert _typed(_command("bash", "--noprofile", "--rcfile", "rc", "-i"), tmp_path, {}) == _COMPLETED


def test_zsh_completes_commands_names_options_values_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".zshrc").write_text(_script("zsh", capsys) + _ZSH)
    assert _typed(_command("zsh", "-d", "-i"), tmp_path, {"ZDOTDIR": str(tmp_path)}) == _COMPLETED


def test_fish_completes_commands_names_options_values_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    folder = tmp_path / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "scaleproof.fish").write_text(_script("fish", capsys))
    # fish reads the completions only of commands that it finds
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "PATH": path}
    words = "\n".join(f"echo (complete -C '{line}' | string split -f 1 \\t)" for line in _COMPLETED)
    command = _command("fish", "-c", words)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=variables)
    assert dict(zip(_COMPLETED, done.stdout.splitlines(), strict=True)) == _COMPLETED
