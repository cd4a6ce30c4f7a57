"""Predictions of faults from settings and from separately measured pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.elastic import measured, predicted
from scaleproof.proof.elastic.faults import server_job
from scaleproof.proof.elastic.launching import ProcessTimes
from scaleproof.proof.elastic.measured import Loss, Pieces
from scaleproof.proof.elastic.rendezvous import Settings
from tests.proof.elastic import made
from tests.proof.elastic.made import KILL, Timeline

JOB = made.job()
NODE = replace(KILL, node=True)
SETTINGS = Settings(hosts=(2, 3))
PIECES = Pieces(start_s=6.0, meet_s=0.2, save_s=0.05, digests={})
ALONE = ProcessTimes(start_s=3.0, end_s=0.0)


def test_a_killed_rank_is_detected_at_the_next_poll_of_its_agent() -> None:
    fault = predicted.under_torchrun(JOB, KILL, replace(SETTINGS, monitor_s=0.08), PIECES, ALONE)
    assert 0 <= fault.detection_s.min() <= fault.detection_s.max() <= 0.08
    assert fault.detection_s.mean() == pytest.approx(0.04, rel=0.05)
    assert fault.work_s.mean() == pytest.approx(3 * predicted.times(JOB.scenario).step_s)


def test_a_lost_host_is_detected_at_the_next_collective() -> None:
    fault = predicted.under_torchrun(JOB, NODE, SETTINGS, PIECES, ALONE)
    compute_s = predicted.times(JOB.scenario).compute_s
    assert compute_s <= fault.detection_s.min() <= fault.detection_s.max() <= compute_s + SETTINGS.monitor_s


def test_losing_a_host_costs_the_heartbeat_timeout_and_the_last_call() -> None:
    with_it, without = (predicted.under_torchrun(JOB, kill, SETTINGS, PIECES, ALONE) for kill in (KILL, NODE))
    assert without.meeting_s.mean() > with_it.meeting_s.mean() + SETTINGS.last_call_s
    patient = predicted.under_torchrun(JOB, NODE, replace(SETTINGS, attempts=10), PIECES, ALONE)
    assert patient.meeting_s.mean() == pytest.approx(without.meeting_s.mean() + 7, abs=0.5)


def test_concurrently_started_processes_take_longer_than_one() -> None:
    times_s = [predicted.start_s(JOB, PIECES, ALONE, processes) for processes in (1, 2, 3)]
    assert times_s == pytest.approx([ALONE.start_s, (ALONE.start_s + PIECES.start_s) / 2, PIECES.start_s])
    killed, lost = (predicted.under_torchrun(JOB, kill, SETTINGS, PIECES, ALONE) for kill in (KILL, NODE))
    assert killed.start_s.mean() - lost.start_s.mean() == pytest.approx(1.5), "three start again, or two"


def test_either_workers_or_the_server_wait() -> None:
    job = server_job(Path("nowhere"))
    slow = predicted.supervised(job, KILL, PIECES, ProcessTimes(60.0, 0.0))
    assert np.allclose(slow.detection_s + slow.start_s, slow.detection_s + 60.0 + PIECES.meet_s)
    compute_s = predicted.times(job.scenario).compute_s
    # what workers push arrives nowhere: they see that the server is gone, or it went while they pushed
    for end_s, others_s in ((compute_s / 2, compute_s), (2 * compute_s, compute_s + job.silence_s)):
        quick = predicted.supervised(job, KILL, PIECES, ProcessTimes(0.0, end_s))
        assert quick.meeting_s.max() == 0
        assert (quick.detection_s + quick.start_s).mean() == pytest.approx(max(others_s, end_s) + PIECES.meet_s, abs=0.01)


@given(st.floats(0.0, 5.0), st.booleans())
def test_predicted_elapsed_time_equals_that_of_a_simulated_run(save_s: float, node: bool) -> None:
    kill, pieces = replace(KILL, node=node), replace(PIECES, save_s=save_s)
    left = made.RANKS - node
    fault = predicted.under_torchrun(JOB, kill, SETTINGS, pieces, ALONE)
    mean = Loss(0.0, *(float(part.mean()) for part in (fault.detection_s, fault.meeting_s, fault.start_s)))
    before_s, after_s = (predicted.times(JOB.by_ranks[ranks]).step_s for ranks in (made.RANKS, left))
    events = Timeline(JOB, before_s, save_s).disturbed(kill, mean, after_s)
    assert predicted.elapsed_s(JOB, kill, left, pieces, fault) == pytest.approx(measured.elapsed_s(events))


def test_checkpoints_of_servers_overlap_with_computing() -> None:
    job = server_job(Path("nowhere"))
    fault, times = predicted.supervised(job, KILL, PIECES, ALONE), predicted.times(job.scenario)
    quick, slow = (
        predicted.elapsed_s(job, KILL, job.ranks, replace(PIECES, save_s=save_s), fault)
        for save_s in (times.compute_s / 2, times.compute_s + 1)
    )
    assert quick == pytest.approx(job.steps * times.step_s + fault.all_s.mean())
    assert slow == pytest.approx(quick + (job.steps - 1) // job.every)
