"""Predicted and measured cost of each fault; artificial runs that follow the prediction have no error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaleproof.proof.elastic import faults, launching, predicted
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import Kill, ProcessTimes
from scaleproof.proof.elastic.measured import Loss
from scaleproof.proof.elastic.outcome import FaultOutcome, TimeComparison
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions
from tests.proof.elastic.made import Timeline

pytestmark = pytest.mark.full

SAVE_S = 0.1
LOST = Loss(0.0, 0.06, 2.0, 9.0)


class MadeLab:
    """A stub of a lab. limits: rates that links were set to."""

    def __init__(self) -> None:
        self.limits: list[tuple[int, float]] = []

    def limit(self, host: int, rate_Bps: float) -> None:
        self.limits.append((host, rate_Bps))

    def ranks_hosts(self, _: Scenario) -> Sequence[Any]:
        return ()


def run_of(job: Job, kill: Kill | None) -> list[LoggedEvent]:
    before_s = predicted.times(job.scenario).step_s
    timeline = Timeline(job, before_s, SAVE_S)
    if kill is None:
        return timeline.undisturbed()
    left = job.by_ranks[job.ranks - kill.node]
    return timeline.disturbed(kill, LOST, predicted.times(left).step_s)


def measure_on(scenario: Scenario, _: Any, watch: MeasureOptions, __: str) -> Run:
    """Steps as they are predicted; two in the middle are reported."""
    half = scenario.steps // 2
    assert watch.progress is not None
    for step in (half, half + 1):
        watch.progress(step)
    slow = faults.load(faults._WORKERS[0], ["strategy.workers=3", *faults._WORKERS[1], faults._slowed(1)])
    times_s = [predicted.times(one).step_s for one in (scenario, slow) for _ in range(half)]
    verified = Verification("", deviation=1e-6, tolerance=1e-3)
    return replace(predict(scenario, interval=False), step_times_s=tuple(times_s), verified=verified)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> MadeLab:
    made = MadeLab()

    def alone(job: Job, *_: Any) -> ProcessTimes:
        job.write()
        return ProcessTimes(5.0, 0.05)

    def under_torchrun(job: Job, _: Any, __: Settings, kill: Kill | None = None) -> list[LoggedEvent]:
        return run_of(job, kill)

    def supervised(job: Job, _: Any, kill: Kill | None = None) -> list[LoggedEvent]:
        return run_of(job, kill)

    monkeypatch.setattr(faults, "Netlab", lambda _: nullcontext(made))
    monkeypatch.setattr(faults, "measure_on", measure_on)
    monkeypatch.setattr(faults, "verdict", lambda *_: Verification("", deviation=0.5, tolerance=0.1))
    monkeypatch.setattr(launching, "alone", alone)
    monkeypatch.setattr(launching, "under_torchrun", under_torchrun)
    monkeypatch.setattr(launching, "supervised", supervised)
    return made


def rows_of(outcome: FaultOutcome) -> dict[str, TimeComparison]:
    return {row.name.strip(): row for row in outcome.rows}


def test_cost_of_a_killed_rank_follows_from_its_run(lab: MadeLab, tmp_path: Path) -> None:
    reported: list[str] = []
    rank, node = faults.inject_faults(["rank", "node"], tmp_path, reported.append)
    rows = rows_of(rank)
    assert rows["detection"].measured_s == pytest.approx(LOST.detection_s)
    assert rows["restart"].measured_s == pytest.approx(LOST.restart_s)
    assert rows["processes"].measured_s == pytest.approx(LOST.start_s)
    for exact in ("lost work", "step before", "step after"):
        assert rows[exact].error == pytest.approx(0, abs=1e-6)
    assert rank.right
    assert "3 steps since the last checkpoint are done again by 3 ranks" in rank.description
    assert reported == [
        "starting a process of netlab-ddp-after by itself",
        "training netlab-ddp-after undisturbed",
        "killing a rank under torchrun",
        "killing a host under torchrun",
    ]
    assert rows_of(node)["step after"].predicted_s != rows["step after"].predicted_s, "two ranks share the samples"
    assert not node.right
    assert node.state == "off by 0.5 from equivalent training in one process, which is wrong"


def test_a_killed_server_has_no_rendezvous(lab: MadeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LOST", replace(LOST, meeting_s=0.0))
    (outcome,) = faults.inject_faults(["server"], tmp_path, lambda _: None)
    assert "rendezvous" not in rows_of(outcome)
    assert outcome.right
    assert outcome.name == "a server killed, and restored"


def test_the_link_is_slowed_after_half_of_the_steps(lab: MadeLab, tmp_path: Path) -> None:
    (outcome,) = faults.inject_faults(["link"], tmp_path, lambda _: None)
    assert lab.limits == [(1, 200e6 / 8)]
    rows = rows_of(outcome)
    assert [rows[name].error for name in ("step before", "step after", "whole run")] == pytest.approx([0, 0, 0], abs=1e-6)
    assert rows["step after"].measured_s > 1.5 * rows["step before"].measured_s
    assert outcome.description == "host 1, from 500 Mbit/s to 200 Mbit/s, after step 7 of 14"
    assert outcome.right
