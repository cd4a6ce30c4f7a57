"""Logs of runs become timelines: a run that follows its prediction has no error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.elastic.events.measured_timeline import measured
from scaleproof.proof.elastic.events.probed_times import SupervisorTimes, TorchrunTimes
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import ProcessTimes
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.proof.elastic.undisturbed import Pieces
from scaleproof.simulator.analysis.elastic.event_simulation import EventSimulation
from scaleproof.simulator.analysis.elastic.outcome import ElasticOutcome, StateCheck
from scaleproof.simulator.analysis.elastic.pauses import RecoveryTimes
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from tests.proof.elastic.events.logs import log_of

NAMES = (
    "netlab-host-returns",
    "netlab-host-added",
    "netlab-spot-notice",
    "netlab-spot-no-notice",
    "netlab-rank-killed",
    "netlab-host-lost",
    "netlab-server-killed",
    "netlab-link-slowed",
)
STATE = StateCheck(equal=True, deviation=1e-6, tolerance=5e-4, loss_deviation=1e-7, losses=(1.0, 0.5))


def predicted(name: str) -> tuple[EventJob, ElasticTimeline, list[LoggedEvent]]:
    job = EventJob(load(name))
    sizes = range(min(job.hosts), job.most_hosts + 1)
    pieces = Pieces(start_s=6.0, meet_s=0.5, save_s=0.06, restore_s=0.02)
    by_ranks = {hosts: job.scenario_on(hosts) for hosts in sizes}
    every = job.reliability.checkpoint.steps
    assert every is not None
    probed = Job(Path("nowhere"), by_ranks, every), pieces, ProcessTimes(3.0, 0.03)
    times: RecoveryTimes = SupervisorTimes(*probed)
    if job.scenario.strategy.kind == "data_parallel":
        times = TorchrunTimes(*probed, Settings((min(job.hosts), job.most_hosts)), agent_s=4.0)
    timeline = EventSimulation(job, times).timeline()
    return job, timeline, log_of(job, timeline, times.saving, every)


def _outcome(expected: ElasticTimeline, found: ElasticTimeline) -> ElasticOutcome:
    return ElasticOutcome(on="netlab", predicted=expected, measured=found, state=STATE)


def _numbers(part: Record) -> dict[str, float]:
    return {name: value for name, value in part.to_dict().items() if isinstance(value, int | float)}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_follows_its_prediction_has_no_error(name: str) -> None:
    job, timeline, log = predicted(name)
    found = measured(job, log)
    for expected, one in zip(timeline.changes, found.changes, strict=True):
        # the bounds of a prediction, which a run does not have
        bounded = expected.model_copy(update={"low_s": one.low_s, "high_s": one.high_s})
        assert one.causes == bounded.causes
        assert _numbers(one) == pytest.approx(_numbers(bounded), abs=1e-6)
    for stretch, other in zip(timeline.stretches, found.stretches, strict=True):
        assert _numbers(other) == pytest.approx(_numbers(stretch), abs=1e-6)
    outcome = _outcome(timeline, found)
    assert outcome.follows
    assert max(abs(row.error or 0.0) for row in outcome.rows) < 1e-3
    assert outcome.rows[-1].predicted_s == pytest.approx(timeline.total_s)


def test_spot_hosts_lose_work_only_without_notice() -> None:
    (_, noticed, _), (_, lost, _) = predicted("netlab-spot-notice"), predicted("netlab-spot-no-notice")
    assert (noticed.changes[0].lost_steps, lost.changes[0].lost_steps) == (0, 6)
    assert noticed.total_s < lost.total_s


def test_one_event_of_each_kind_costs_what_it_is_expected_to() -> None:
    rank, host, server, link = (predicted(name)[1] for name in NAMES[4:])
    for timeline, hosts in ((rank, 3), (host, 2), (server, 3)):
        (change,) = timeline.changes
        assert (change.done_step, change.resumed_step, change.hosts_after) == (11, 8, hosts)
        outcome = _outcome(timeline, timeline)
        rows = {row.name.strip(): row.measured_s for row in outcome.rows}
        assert rows["lost in all"] == pytest.approx(rows["lost work"] + rows["pause 1"])
    assert rank.total_s < host.total_s, "nobody waits for the heartbeats of a host that is there"
    assert server.changes[0].group_s == 0, "there is no rendezvous"
    (change,) = link.changes
    assert (change.pause_s, change.lost_s, change.resumed_step) == (0, 0, 7)
    before, after = link.stretches
    slow = load("netlab-link-slowed", ["cluster.network.exceptions=[{at: [1], bandwidth: 200 Mbit/s}]"])
    assert after.step_s == pytest.approx(predict(slow, interval=False).step_time_s)
    assert after.step_s > 1.5 * before.step_s
    assert _outcome(link, link).rows[-1].predicted_s == pytest.approx(7 * (before.step_s + after.step_s))


def test_other_changes_than_predicted_are_shown_as_such() -> None:
    job, timeline, log = predicted("netlab-host-returns")
    found = measured(job, log)
    other = found.model_copy(update={"changes": found.changes[:1], "stretches": found.stretches[:2]})
    outcome = _outcome(timeline, other)
    assert not outcome.follows
    assert [row.name for row in outcome.rows] == ["whole run"]


def test_groups_that_never_train_do_not_count() -> None:
    job, timeline, log = predicted("netlab-host-added")
    # a rank that was ready alone, before its agent saw the host that joined
    alone = next(event for event in log if event.what == "ready")
    again = [replace(alone, at_s=alone.at_s - 1.0), *log]
    assert measured(job, again).total_s == pytest.approx(measured(job, log).total_s)
    assert timeline.changes[0].hosts_after == 4


def test_a_change_without_an_event_is_an_error() -> None:
    job, _, log = predicted("netlab-spot-no-notice")
    with pytest.raises(RunError, match="changed without an event"):
        measured(job, [event for event in log if event.by != "injector"])
    with pytest.raises(RunError, match="no group of ranks was ready"):
        measured(job, [event for event in log if event.what != "ready"])
