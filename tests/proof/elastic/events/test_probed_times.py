"""Durations of changes follow the rules of launchers: heartbeats of hosts that are gone, last calls, and polls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.elastic.events.probed_times import SupervisorTimes, TorchrunTimes
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import ProcessTimes
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.proof.elastic.undisturbed import Pieces
from scaleproof.simulator.analysis.elastic.pauses import ChangeKind, Pause, Regroup
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

SCENARIOS = {hosts: load("netlab-ddp-after", [f"strategy.workers={hosts}", "batch={total: 24}"]) for hosts in (2, 3, 4)}
PIECES = Pieces(start_s=7.0, meet_s=0.5, save_s=0.06, restore_s=0.02)
TIMES = TorchrunTimes(Job(Path("x"), SCENARIOS, 10), PIECES, ProcessTimes(4.0, 0.03), Settings((2, 4)), agent_s=5.0)


def pause(
    kind: ChangeKind, left: int, joining_s: tuple[float, ...] = (), number: int = 0, times: TorchrunTimes = TIMES
) -> Pause:
    return times.pause(Regroup(kind, left, joining_s, number, compute_left_s=0.2 if kind in ("failure", "crash") else 0.0))


def test_a_lost_host_costs_heartbeats_and_the_last_call_with_notice_or_without() -> None:
    for kind in ("failure", "leave"):
        missed = pause(kind, 3)
        least_s = TIMES.settings.missing_s - TIMES.settings.keep_alive_s + TIMES.settings.last_call_s
        assert least_s < missed.formed_s < least_s + 4
        patient = replace(TIMES, settings=replace(TIMES.settings, attempts=10))
        assert pause(kind, 3, times=patient).formed_s == pytest.approx(missed.formed_s + 7, abs=0.5)
    assert pause("failure", 3).detection_s > 0.2, "ranks notice when they communicate"
    assert pause("leave", 3).detection_s == 0


def test_a_full_group_is_formed_without_a_last_call() -> None:
    full, partial = pause("join", 3, (0.0,)), pause("join", 2, (0.0,))
    assert full.formed_s < 2.5
    assert partial.formed_s > TIMES.settings.last_call_s
    assert full.low_s <= full.all_s <= full.high_s


def test_more_processes_start_more_slowly_and_all_restore() -> None:
    starts_s = [pause("failure", left).start_s for left in (2, 3, 4)]
    assert starts_s == sorted(starts_s)
    assert pause("join", 3, (0.0,)).start_s == pytest.approx(PIECES.start_s + PIECES.meet_s - PIECES.restore_s)
    assert {pause(kind, 3).restore_s for kind in ("failure", "leave", "join")} == {PIECES.restore_s}


def test_a_crash_is_detected_when_its_agent_polls_and_costs_no_heartbeats() -> None:
    crashed, failed = pause("crash", 3), pause("failure", 2)
    assert 0 < crashed.detection_s - TIMES.alone.end_s < TIMES.settings.monitor_s
    assert crashed.detection_s < failed.detection_s, "the other ranks notice when they communicate"
    assert crashed.formed_s + TIMES.settings.last_call_s < failed.formed_s, "all hosts are there, so that none is waited for"
    assert crashed.start_s > failed.start_s, "three processes start again, or two"


def test_of_a_server_and_its_workers_the_later_one_is_waited_for() -> None:
    scenario = load("netlab-servers-1", ["strategy.workers=2"])
    job = Job(Path("x"), {scenario.strategy.ranks: scenario}, 10)
    for start_s, end_s, compute_s, begin_s in (
        (60.0, 0.0, 0.2, 60.0),
        # what workers push arrives nowhere: they see that the server is gone, or it went while they pushed
        (0.0, 0.1, 0.2, 0.2),
        (0.0, 0.3, 0.2, 0.2 + job.silence_s),
    ):
        times = SupervisorTimes(job, PIECES, ProcessTimes(start_s, end_s))
        found = times.pause(Regroup("crash", 3, compute_left_s=compute_s))
        assert found.group_s == 0
        assert found.all_s == pytest.approx(begin_s + PIECES.meet_s, abs=0.02)


def test_checkpoints_of_servers_overlap_with_computing() -> None:
    scenario = load("netlab-servers-1", ["strategy.workers=2"])
    compute_s = predict(scenario, interval=False).breakdown_s["compute"]
    for save_s, stall_s in ((compute_s / 2, 0.0), (compute_s + 1, 1.0)):
        times = SupervisorTimes(Job(Path("x"), {3: scenario}, 10), replace(PIECES, save_s=save_s), TIMES.alone)
        assert times.saving.stall_s == pytest.approx(stall_s)
        assert times.saving.all_s == pytest.approx(save_s)
