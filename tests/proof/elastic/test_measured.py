"""Cost of a fault, computed from the records of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.elastic import measured
from scaleproof.proof.elastic.measured import Loss
from scaleproof.simulator.common.errors import RunError
from tests.proof.elastic import made
from tests.proof.elastic.made import KILL, Timeline

JOB = made.job()
LOSS = Loss(0.0, 0.1, 2.0, 5.0)
parts = st.floats(0.01, 20.0)


@given(st.builds(Loss, st.just(0.0), parts, parts, parts), parts, st.floats(0.0, 3.0), st.booleans())
def test_parts_of_the_lost_time_are_recovered_from_events(given_loss: Loss, step_s: float, save_s: float, node: bool) -> None:
    kill = replace(KILL, node=node)
    found = measured.loss(Timeline(JOB, step_s, save_s).disturbed(kill, given_loss, step_s))
    expected = replace(given_loss, work_s=3 * step_s)
    assert found.work_s == pytest.approx(expected.work_s)
    assert found.detection_s == pytest.approx(expected.detection_s)
    assert found.meeting_s == pytest.approx(expected.meeting_s)
    assert found.start_s == pytest.approx(expected.start_s)
    assert found.all_s == pytest.approx(expected.all_s)


@given(parts, st.floats(0.0, 3.0))
def test_elapsed_time_grows_by_the_lost_time(step_s: float, save_s: float) -> None:
    without = Timeline(JOB, step_s, save_s).undisturbed()
    events = Timeline(JOB, step_s, save_s).disturbed(KILL, LOSS, step_s)
    lost_s = measured.elapsed_s(events) - measured.elapsed_s(without)
    assert lost_s == pytest.approx(measured.loss(events).all_s)


def test_step_times_before_and_after_exclude_checkpoints() -> None:
    events = Timeline(JOB, 0.5, 3.0).disturbed(KILL, LOSS, 0.7)
    assert measured.step_s(events, JOB) == pytest.approx(0.5)
    assert measured.step_s(events, JOB, after=True) == pytest.approx(0.7)
    assert measured.resumed_from(events) == 8


def test_an_undisturbed_run_gives_the_times_of_its_pieces() -> None:
    pieces = measured.pieces(Timeline(JOB, 0.5, 0.25).undisturbed())
    assert pieces.start_s == pytest.approx(6.0)
    assert pieces.meet_s == pytest.approx(1.0)
    assert pieces.save_s == pytest.approx(0.25)
    assert pieces.digests == {rank: f"of {rank}" for rank in range(made.RANKS)}


def test_a_run_finished_before_the_kill_is_reported() -> None:
    with pytest.raises(RunError, match="the run ended before anything was killed; give it more steps"):
        measured.loss(Timeline(JOB, 0.5, 0.1).undisturbed())


def test_ranks_that_never_resumed_are_reported() -> None:
    events = Timeline(JOB, 0.5, 0.1).disturbed(KILL, LOSS, 0.5)
    killed_s = next(event.at_s for event in events if event.what == "killed")
    with pytest.raises(RunError, match="no rank continued"):
        measured.loss([event for event in events if event.at_s <= killed_s])


def test_a_second_failure_is_reported() -> None:
    events = Timeline(JOB, 0.5, 0.1).disturbed(KILL, LOSS, 0.5)
    again = replace(events[-1], what="ready", at_s=events[-1].at_s + 1)
    with pytest.raises(RunError, match="more ranks were restarted than killed"):
        measured.loss([*events, again])


def test_too_few_steps_are_reported() -> None:
    every_step = made.job(every=1)
    with pytest.raises(RunError, match="too few steps"):
        measured.step_s(Timeline(every_step, 0.5, 0.1).undisturbed(), every_step)
