"""The command faults: it prints the outcome of each scenario, saves it with --out, and fails for wrong parameters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scaleproof import main
from scaleproof.proof.elastic.events.experiment import Experiment
from scaleproof.proof.elastic.records import EventLog
from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.elastic.outcome import FILE, ElasticOutcome, ElasticRecord, StateCheck
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch import fork_server
from scaleproof.validator.netlab import lab

ALL = ["netlab-rank-killed", "netlab-host-lost", "netlab-server-killed", "netlab-link-slowed"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scenarios that were run, each of which follows its prediction; no process is started."""
    names: list[str] = []

    def follow(experiment: Experiment, folder: Path, _: Callable[[str], None]) -> ElasticOutcome:
        folder.mkdir()
        EventLog(folder, 1, "trainer").note("begun")
        timeline = elastic(experiment.scenario)
        names.append(timeline.scenario)
        state = StateCheck(equal=True, deviation=1e-6, tolerance=5e-4, loss_deviation=1e-7, losses=(2.0, 1.0))
        return ElasticOutcome(on="netlab", predicted=timeline, measured=timeline, state=state)

    monkeypatch.setattr(Experiment, "run", follow)
    monkeypatch.setattr(lab, "require", lambda: None)
    monkeypatch.setattr(fork_server.ForkServer, "wait_until_ready", lambda _: None)
    return names


def change_outcome(monkeypatch: pytest.MonkeyPatch, change: Callable[[ElasticOutcome], ElasticOutcome]) -> None:
    followed = Experiment.run
    monkeypatch.setattr(Experiment, "run", lambda *given: change(followed(*given)))


def test_without_a_scenario_one_event_of_each_kind_happens(run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    assert run == ALL
    printed = capsys.readouterr().out
    assert "1. the process on host 2 crashes after step 11: 3 steps" in printed
    assert "1. host 2 fails after step 11: 3 steps" in printed
    assert "1. the link of host 1 has 200 Mbit/s after step 7: nothing lost, no pause, then 3 hosts" in printed


def test_selected_faults_are_printed_as_json_and_saved(
    run: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["faults", "--only", "rank", "--only", "link", "--json", "--out", str(tmp_path)]) == 0
    assert run == ["netlab-rank-killed", "netlab-link-slowed"]
    reported = json.loads(capsys.readouterr().out)
    assert [one["measured"]["steps"] for one in reported["events"]] == [17, 14]
    assert {"host", "date", "cpu", "torch"} <= set(reported["provenance"])
    assert [one.predicted.scenario for one in ElasticRecord.read(tmp_path / FILE, "faults").events] == run, (
        "the report reads it"
    )
    assert (tmp_path / "0" / "trainer-1.jsonl").exists()


def test_wrong_parameters_after_recovery_set_the_exit_code(monkeypatch: pytest.MonkeyPatch, run: list[str]) -> None:
    change_outcome(monkeypatch, lambda one: one.model_copy(update={"state": one.state.model_copy(update={"equal": False})}))
    assert main(["faults", "--only", "rank"]) == 1


def test_warnings_go_to_stderr(monkeypatch: pytest.MonkeyPatch, run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    change_outcome(monkeypatch, lambda one: one.model_copy(update={"warning": "the machine is busy"}))
    assert main(["faults", "--only", "rank"]) == 0
    reported = capsys.readouterr()
    assert "busy" not in reported.out
    assert "warning: netlab-rank-killed: the machine is busy" in reported.err.splitlines()


def test_a_lab_that_cannot_be_built_gives_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def require() -> None:
        raise RunError("netlab makes network namespaces, which only root may; run it with sudo")

    monkeypatch.setattr(lab, "require", require)
    assert main(["faults"]) == 1
    assert capsys.readouterr().err == "netlab makes network namespaces, which only root may; run it with sudo\n"
