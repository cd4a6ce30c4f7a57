"""Real training along events: what cannot be run is refused before, and what is run has the right state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scaleproof import main
from scaleproof.commands.text.sections import section_lines
from scaleproof.proof.elastic import launching
from scaleproof.proof.elastic.events import experiment
from scaleproof.proof.elastic.events.experiment import Experiment
from scaleproof.proof.elastic.events.probed_times import TorchrunTimes
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launchers import Torchrun
from scaleproof.proof.elastic.launching import Hosts, ProcessTimes
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.reports.descriptions.elastic import describe_runs
from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome, ElasticRecord, StateCheck
from scaleproof.simulator.analysis.elastic.pauses import Saving
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.reliability import AnyHostEvent
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import run_on_ranks
from tests.proof.elastic.events import signalling
from tests.proof.elastic.events.logs import log_of
from tests.proof.elastic.made import undisturbed


@pytest.mark.parametrize(
    ("name", "overrides", "why"),
    [
        ("netlab-spot-notice", ["reliability.events=[{kind: failure, host: 0, step: 9}]"], "host 0 has torchrun's store"),
        (
            "netlab-spot-notice",
            ["strategy.workers=8", "cluster.node={devices: 2, link: {bandwidth: 1 GB/s, latency: 5 us}}"],
            "each host has one rank",
        ),
        ("netlab-spot-notice", ["batch.total=100"], "100 samples are not divisible among 3 hosts; give batch.per_worker"),
        (
            "netlab-host-added",
            ["reliability.checkpoint={interval: 9 s, bandwidth: 1 GB/s}"],
            "give the steps between checkpoints",
        ),
        ("netlab-host-added", ["reliability.events=[{kind: join, host: 3, step: 2}]", "steps=3"], "steps: 3 is too few"),
        ("netlab-host-added", ["training={zero: 2}"], "cannot be restored"),
        ("netlab-ddp-after", [], "reliability.events: missing"),
        (
            "netlab-server-killed",
            ["reliability.events=[{kind: failure, host: 2, step: 9}]"],
            "failure changes the hosts, which jobs with parameter servers keep; give crash or link",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(name: str, overrides: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Experiment(load(name, overrides), "netlab")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["netlab-host-returns", "--only", "rank"], "--only is for faults without a scenario"),
        (["--on", "local"], "--on local needs a scenario with reliability.events"),
        (["netlab-link-slowed", "--on", "local"], "links of this machine's processes are not limited; use --on netlab"),
        (["netlab-host-added", "--set", "reliability.events=[{kind: join, host: 77, step: 9}]"], "there is no host 77"),
    ],
)
def test_the_command_says_what_to_change(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", *arguments]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.full
def test_all_ranks_hand_over_when_one_is_signalled() -> None:
    assert run_on_ranks(signalling.signal_one, 3, 1) == [[False, True]] * 3


def test_an_experiment_probes_predicts_runs_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are replaced by the logs that they write when the run follows its prediction."""
    scenario = load("netlab-host-returns")
    predictions: list[ElasticTimeline] = []

    def alone(job: Job, *_: Any) -> ProcessTimes:
        job.write()
        return ProcessTimes(3.0, 0.03)

    def predicted(one: Scenario, times: TorchrunTimes) -> ElasticTimeline:
        predictions.append(elastic(one, times))
        assert (times.agent_s, times.saving.stall_s) == (4.0, pytest.approx(0.06))
        return predictions[-1]

    def train_along(job: Job, hosts: Hosts, _: Torchrun, first: int, events: Sequence[AnyHostEvent] = ()) -> list[LoggedEvent]:
        if not events:
            return undisturbed(job, 0.9, 0.06)
        assert (job.ranks, job.steps, job.every, first, len(events)) == (3, 40, 10, 3, 2)
        assert [hosts.address(host) for host in range(2)] == ["127.0.0.1", "127.0.0.2"]
        return log_of(EventJob(scenario), predictions[-1], Saving(0.06), every=10)

    monkeypatch.setattr(launching, "alone", alone)
    monkeypatch.setattr(launching, "agent_alone", lambda *_: 4.0)
    monkeypatch.setattr(experiment, "elastic", predicted)
    monkeypatch.setattr(experiment, "train_along", train_along)
    monkeypatch.setattr(
        experiment,
        "check_state",
        lambda *_: StateCheck(equal=True, deviation=1e-6, tolerance=5e-4, loss_deviation=1e-7, losses=(1.0,)),
    )
    reported: list[str] = []
    outcome = Experiment(scenario, "local").run(tmp_path, reported.append)
    assert outcome.follows
    assert outcome.measured.total_s == pytest.approx(outcome.predicted.total_s)
    assert [line.rpartition(": ")[2] for line in reported] == [
        "starting single processes",
        "training undisturbed",
        "training along 2 events",
        "the same steps in one process",
    ]
    (section,) = describe_runs(ElasticRecord(events=(outcome,))).sections
    text = " ".join(" ".join(section_lines(section)).split())
    assert text.startswith("netlab-host-returns: 40 steps on 3 hosts at first, local changes 1. host 2 fails after step 16: 6")
    assert "then 2 hosts 2. host 2 joins at 38.0 s: nothing lost" in text
    assert "parameters equal on all ranks, off by 1e-06 from one process with the same batches; losses by 1e-07" in text


def run_along(events: str, batch: str, folder: Path) -> ElasticOutcome:
    """Three processes of this machine whose steps take 0.35 s, so that hosts change within them also on a busy machine."""
    reliability = f"reliability={{checkpoint: {{steps: 10, bandwidth: 1 GB/s}}, events: {events}}}"
    scenario = load("netlab-ddp-after", ["strategy.workers=3", f"batch={batch}", "steps=70", reliability])
    outcome = Experiment(scenario, "local").run(folder, lambda _: None)
    assert outcome.state.right, outcome.state.words
    assert len(outcome.state.losses) == 70
    assert json.loads(outcome.to_json())["measured"]["steps"] == 70
    return outcome


@pytest.mark.nightly
def test_training_goes_on_rightly_as_a_host_fails_and_comes_back(tmp_path: Path) -> None:
    events = "[{kind: failure, host: 2, step: 6}, {kind: join, host: 2, step: 8}]"
    measured = run_along(events, "{total: 24}", tmp_path).measured
    assert [stretch.hosts for stretch in measured.stretches] == [3, 2, 3]
    failed, joined = measured.changes
    assert (failed.done_step, failed.resumed_step) == (6, 0), "nothing was saved before"
    assert joined.handed_over
    assert joined.lost_steps == 0


@pytest.mark.nightly
def test_training_goes_on_rightly_with_other_batches_as_a_host_is_added_and_interrupted(tmp_path: Path) -> None:
    events = "[{kind: join, host: 3, step: 2}, {kind: interruption, host: 3, step: 60, notice: 20 s}]"
    measured = run_along(events, "{per_worker: 8}", tmp_path).measured
    assert [stretch.samples for stretch in measured.stretches] == [24, 32, 24]
    assert [change.handed_over for change in measured.changes] == [True, True]
    assert [change.lost_steps for change in measured.changes] == [0, 0]
