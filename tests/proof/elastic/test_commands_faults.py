"""The command faults: it prints the outcome of each fault, saves it with --out, and fails for wrong parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof import main
from scaleproof.proof.elastic import faults
from scaleproof.proof.elastic.outcome import FaultOutcome
from scaleproof.proof.elastic.records import EventLog
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch import fork_server
from scaleproof.validator.netlab import lab
from tests.proof.elastic.test_outcome import OUTCOME


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requested kinds; nothing is run."""
    kinds: list[str] = []

    def inject_faults(wanted: Sequence[str], folder: Path, _: Callable[[str], None]) -> list[FaultOutcome]:
        kinds.extend(wanted)
        (folder / "rank").mkdir()
        EventLog(folder / "rank", 1, "trainer").note("begun")
        return [OUTCOME]

    monkeypatch.setattr(faults, "inject_faults", inject_faults)
    monkeypatch.setattr(lab, "require", lambda: None)
    monkeypatch.setattr(fork_server.ForkServer, "wait_until_ready", lambda _: None)
    return kinds


def test_all_faults_are_reported(requested: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    assert requested == list(faults.KINDS)
    assert capsys.readouterr().out.startswith("a rank killed\n  in the middle\n")


def test_selected_faults_are_printed_as_json_and_saved(
    requested: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["faults", "--only", "rank", "--only", "link", "--json", "--out", str(tmp_path)]) == 0
    assert requested == ["rank", "link"]
    reported = json.loads(capsys.readouterr().out)
    assert reported["faults"] == [json.loads(json.dumps(OUTCOME.plain()))]
    assert {"host", "date", "cpu", "torch"} <= set(reported["provenance"])
    assert json.loads((tmp_path / "faults.json").read_text()) == reported
    assert (tmp_path / "rank" / "trainer-1.jsonl").exists()


def test_wrong_parameters_after_recovery_set_the_exit_code(monkeypatch: pytest.MonkeyPatch, requested: list[str]) -> None:
    monkeypatch.setattr(faults, "inject_faults", lambda *_: [replace(OUTCOME, right=False)])
    assert main(["faults"]) == 1


def test_warnings_go_to_stderr(
    monkeypatch: pytest.MonkeyPatch, requested: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "inject_faults", lambda *_: [replace(OUTCOME, warning="the machine is busy")])
    assert main(["faults"]) == 0
    reported = capsys.readouterr()
    assert "busy" not in reported.out
    assert "warning: a rank killed: the machine is busy" in reported.err.splitlines()


def test_a_lab_that_cannot_be_built_gives_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def require() -> None:
        raise RunError("netlab makes network namespaces, which only root may; run it with sudo")

    monkeypatch.setattr(lab, "require", require)
    assert main(["faults"]) == 1
    assert capsys.readouterr().err == "netlab makes network namespaces, which only root may; run it with sudo\n"


def test_unknown_faults_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["faults", "--only", "disk"])
    assert "choose from" in capsys.readouterr().err
