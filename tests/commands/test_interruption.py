"""Ctrl-C and SIGTERM: one line says what was interrupted, and the exit code which signal it was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.commands.main import Terminated, sigterm_raises

PREDICT = ["predict", "resnet50-ring-p100"]


def interrupt_by(number: signal.Signals) -> Callable[..., Any]:
    """A function that sends this process a signal."""

    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        # a signal is handled before the next instruction of Python
        raise AssertionError

    return interrupted


@pytest.mark.parametrize(("number", "by", "code"), [(signal.SIGINT, "", 130), (signal.SIGTERM, " by SIGTERM", 143)])
def test_an_interrupted_command_says_so_in_one_line(
    number: signal.Signals, by: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaleproof.simulator.predict.predict", interrupt_by(number))
    assert scaleproof.main(PREDICT) == code
    assert capsys.readouterr().err == f"scaleproof predict interrupted{by}\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_plan_says_which_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaleproof.simulator.analysis.planner.sizes.plan_sizes", interrupt_by(signal.SIGTERM))
    assert scaleproof.main(["plan", "llama-2-7b-fsdp-a100", "--out", str(tmp_path)]) == 143
    continues = f"finished sizes are in {tmp_path}; the same command continues"
    assert capsys.readouterr().err == f"scaleproof plan interrupted by SIGTERM; {continues}\n"


def test_commands_with_resume_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaleproof.commands.measuring.session.Session.scenarios", interrupt_by(signal.SIGTERM))
    monkeypatch.setattr("scaleproof.commands.measuring.session.require_torch", lambda: None)
    assert scaleproof.main(["measure", "ring-2", "--out", str(tmp_path)]) == 143
    assert capsys.readouterr().err == f"scaleproof measure interrupted by SIGTERM; --out {tmp_path} --resume continues\n"


def test_a_second_sigterm_does_not_interrupt_what_ends_the_first() -> None:
    ended: list[bool] = []

    def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append(True)

    with sigterm_raises(), pytest.raises(Terminated):
        interrupted()
    assert ended


def test_handlers_of_the_process_stay() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with sigterm_raises():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_commands_run_outside_of_the_main_thread(capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(scaleproof.main(PREDICT)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "samples/s" in capsys.readouterr().out
