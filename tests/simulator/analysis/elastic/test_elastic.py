"""Timelines along events: what is lost, when training goes on, and what theory says about limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.common.errors import FieldError, InputError, ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

STEPS, EVERY = 60, 5
SAVED_S = 13.228032e-3  # 13.2 MB of parameters at 1 GB/s
MODEL = load("netlab-ddp-after")


def timeline(*events: dict[str, Any], total: int | None = None, **reliability: Any) -> ElasticTimeline:
    """Four workers with five steps between checkpoints, and times that make each part of a pause visible."""
    times = {"detection": "1 s", "reschedule": "2 s", "initialise": "3 s"} | reliability
    fields = {"checkpoint": {"steps": EVERY, "bandwidth": "1 GB/s"}, "events": list(events)} | times
    batch = {"per_worker": 8} if total is None else {"total": total}
    return elastic(MODEL.rebuilt(steps=STEPS, batch=batch, reliability=fields))


def step_s(workers: int) -> float:
    return predict(load("netlab-ddp-after", [f"strategy.workers={workers}", "batch={per_worker: 8}"]), False).step_time_s


def failure(host: int = 3, **when: Any) -> dict[str, Any]:
    return {"kind": "failure", "host": host, **when}


def join(host: int = 3, **when: Any) -> dict[str, Any]:
    return {"kind": "join", "host": host, **when}


def interruption(notice: str, host: int = 3, **when: Any) -> dict[str, Any]:
    return {"kind": "interruption", "host": host, "notice": notice, **when}


def test_a_failure_loses_the_work_since_the_last_checkpoint_and_pauses() -> None:
    found = timeline(failure(step=13))
    (change,) = found.changes
    assert (change.done_step, change.resumed_step, change.lost_steps) == (13, 10, 3)
    assert change.lost_s == pytest.approx(3 * step_s(4))
    assert change.pause_s == pytest.approx(1 + 2 + 3 + SAVED_S)
    assert [stretch.hosts for stretch in found.stretches] == [4, 3]
    # ten steps of four workers are kept, three are taken again, and nothing is saved after the last
    expected_s = 13 * step_s(4) + 50 * step_s(3) + (STEPS // EVERY - 1) * SAVED_S + change.pause_s
    assert found.total_s == pytest.approx(expected_s)


def test_a_host_that_comes_back_joins_at_the_end_of_a_step_and_loses_nothing() -> None:
    found = timeline(failure(step=13), join(at="20 s"))
    again = found.changes[1]
    assert [stretch.hosts for stretch in found.stretches] == [4, 3, 4]
    assert again.lost_s == 0
    assert 20 <= again.stopped_s <= 20 + step_s(3) + 2 * SAVED_S
    assert again.detection_s == 0, "it is announced"


def test_parts_add_up_and_samples_are_those_of_kept_steps() -> None:
    found = timeline(failure(step=13), join(at="20 s"), join(4, at="30 s"))
    assert sum(found.parts_s.values()) == pytest.approx(found.total_s)
    kept = [(stretch.kept_step - stretch.first_step, stretch.samples) for stretch in found.stretches]
    assert sum(steps for steps, _ in kept) == STEPS
    assert found.samples == sum(steps * samples for steps, samples in kept)
    assert [samples for _, samples in kept] == [32, 24, 32, 40]
    assert found.ratio == pytest.approx(found.parts_s["useful"] / found.total_s)


@given(st.integers(1, STEPS - 1))
def test_an_outage_without_length_costs_only_the_lost_work(step: int) -> None:
    instant = {"detection": "0 s", "reschedule": "0 s", "initialise": "0 s"}
    storage = {"steps": EVERY, "bandwidth": "1 GB/s", "load_bandwidth": "1000000000 GB/s"}
    found = timeline(failure(step=step), join(step=step), checkpoint=storage, **instant)
    assert found.undisturbed_s is not None
    # where a checkpoint begins with the failure, it is lost too
    lost_s = ((step - 1) % EVERY + 1) * step_s(4)
    assert found.total_s == pytest.approx(found.undisturbed_s + lost_s, abs=1e-6)
    assert found.changes[0].hosts_after == 4


@given(st.floats(0.0, 0.03), st.integers(1, 40))
def test_work_is_lost_exactly_if_the_notice_is_shorter_than_step_and_checkpoint(notice_s: float, step: int) -> None:
    (change,) = timeline(interruption(f"{notice_s:.6f} s", step=step)).changes
    # it comes at the end of a step
    if notice_s > SAVED_S + 1e-5:
        assert change.handed_over
        assert (change.lost_s, change.lost_steps) == (pytest.approx(0, abs=1e-9), 0)
    elif notice_s < SAVED_S - 1e-5:
        assert not change.handed_over
        assert change.lost_steps == (step - 1) % EVERY + 1


def test_a_host_that_is_back_before_the_group_is_formed_joins_it() -> None:
    early, late = (timeline(failure(step=13), join(at=f"{at_s} s")) for at_s in (7, 10))
    assert [change.causes for change in early.changes] == [("host 3 fails after step 13", "host 3 joins at 7.00 s")]
    assert early.changes[0].hosts_after == 4
    # the group of three is formed, but does not train before the pause begins again
    assert [change.hosts_after for change in late.changes] == [3, 4]
    assert late.changes[0].resumed_s == late.changes[1].stopped_s == pytest.approx(10)
    assert late.total_s > early.total_s


def test_a_failure_in_a_pause_begins_it_again() -> None:
    once, twice = timeline(failure(step=13)), timeline(failure(step=13), failure(2, at="10 s"))
    assert twice.changes[1].resumed_s == pytest.approx(10 + 1 + 2 + 3 + SAVED_S)
    assert twice.changes[1].lost_steps == 0, "nothing was trained since"
    assert twice.stretches[1].hosts == 2
    assert sum(twice.parts_s.values()) == pytest.approx(twice.total_s)
    assert once.changes[0].lost_s == twice.changes[0].lost_s


def crash(host: int = 3, **when: Any) -> dict[str, Any]:
    return {"kind": "crash", "host": host, **when}


def slow_link(host: int, bandwidth: str, **when: Any) -> dict[str, Any]:
    return {"kind": "link", "host": host, "bandwidth": bandwidth, **when}


def slow_step_s(workers: int, host: int) -> float:
    exceptions = f"cluster.network.exceptions=[{{at: [{host}], bandwidth: 100 Mbit/s}}]"
    slow = load("netlab-ddp-after", [f"strategy.workers={workers}", "batch={per_worker: 8}", exceptions])
    return predict(slow, False).step_time_s


def test_a_crash_costs_a_failure_whose_host_is_there_again() -> None:
    crashed, failed = timeline(crash(step=13)), timeline(failure(step=13))
    assert [stretch.hosts for stretch in crashed.stretches] == [4, 4]
    assert crashed.changes[0].pause_s == pytest.approx(failed.changes[0].pause_s)
    assert crashed.parts_s["lost work"] == pytest.approx(failed.parts_s["lost work"])
    twice = timeline(crash(step=13), crash(2, at="10 s"))
    assert twice.changes[1].resumed_s == pytest.approx(10 + 1 + 2 + 3 + SAVED_S), "the pause begins again"


def test_a_slow_link_slows_steps_from_then_on_and_loses_nothing() -> None:
    for when, step in (({"step": 20}, 20), ({"step": 23}, 23), ({"at": f"{22.5 * step_s(4) + 4 * SAVED_S} s"}, 23)):
        found = timeline(slow_link(1, "100 Mbit/s", **when))
        (change,) = found.changes
        assert (change.pause_s, change.lost_s, change.resumed_step) == (0, 0, step)
        assert [stretch.step_s for stretch in found.stretches] == pytest.approx([step_s(4), slow_step_s(4, 1)])
        expected_s = step * step_s(4) + (STEPS - step) * slow_step_s(4, 1) + (STEPS // EVERY - 1) * SAVED_S
        assert found.total_s == pytest.approx(expected_s)
        assert found.ratio == pytest.approx(found.parts_s["useful"] / found.total_s)


def test_work_that_was_not_saved_before_a_link_changed_is_lost_with_a_host() -> None:
    found = timeline(slow_link(1, "100 Mbit/s", step=13), failure(step=14))
    assert (found.changes[1].done_step, found.changes[1].resumed_step) == (14, 10)
    assert sum(found.parts_s.values()) == pytest.approx(found.total_s)
    assert sum(stretch.kept_step - stretch.first_step for stretch in found.stretches) == STEPS
    assert found.stretches[-1].step_s == pytest.approx(slow_step_s(3, 1)), "the slow link is still that of host 1"
    without = timeline(slow_link(3, "100 Mbit/s", step=13), failure(step=14))
    assert without.stretches[-1].step_s == pytest.approx(step_s(3)), "its link goes with a host"


@pytest.mark.parametrize(
    ("events", "place", "remedy"),
    [
        ([join(16, step=5)], "events.0.host", "there is no host 16: the cluster has 16"),
        ([join(2, step=5)], "events.0.host", "host 2 trains already; host 4 does not"),
        ([failure(step=5), failure(step=9)], "events.1.host", "does not train then; give one of 0, 1, 2"),
        ([failure(host, step=5) for host in range(4)], "events.3.host", "no host is left"),
        ([failure(step=60)], "events.0.step", "training ends with step 60"),
        ([failure(step=5), crash(step=9)], "events.1.host", "does not train then; give one of 0, 1, 2"),
        ([slow_link(5, "1 Gbit/s", step=9)], "events.0.host", "does not train then; give one of 0, 1, 2, 3"),
        ([failure(step=9), join(step=5)], "events.1.step", "list events in the order"),
    ],
)
def test_events_that_cannot_occur_are_refused(events: list[dict[str, Any]], place: str, remedy: str) -> None:
    with pytest.raises(FieldError, match=f"reliability.{place}") as refused:
        timeline(*events)
    assert remedy in str(refused.value)


def test_limits_of_workers_are_kept() -> None:
    with pytest.raises(FieldError, match=r"5 hosts, but most_workers is 4.*most_workers=5"):
        timeline(join(4, step=5), most_workers=4)
    with pytest.raises(FieldError, match="2 hosts would be left, which cannot train 3 workers"):
        timeline(failure(step=5), failure(2, step=9), least_workers=3)
    with pytest.raises(FieldError, match="5 workers do not divide 32 samples"):
        timeline(join(4, step=5), total=32)


def test_events_after_the_end_are_refused() -> None:
    with pytest.raises(InputError, match=r"host 3 fails at 500 s, but training is predicted to end after \d\d\.\d s"):
        timeline(failure(at="500 s"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("events: [{kind: interruption, host: 3, step: 5, notice: -1 s}]", "'-1 s' is negative"),
        ("events: [{kind: failure, host: 3}]", "give at, such as 30 s, or step"),
        ("events: [{kind: failure, host: 3, step: 5, at: 3 s}]", "give at, such as 30 s, or step, not both"),
        ("events: [{kind: failure, host: 3, step: 5}], mtbf: {host: 1 d}", "events, not both"),
        ("events: []", "give mtbf for random failures, or events"),
        ("events: [{kind: fire, host: 3, step: 5}]", "unknown kind 'fire'; give one of failure, interruption, join"),
    ],
)
def test_wrong_descriptions_are_refused(fields: str, why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        load("netlab-ddp-after", [f"reliability={{checkpoint: {{steps: 5, bandwidth: 1 GB/s}}, {fields}}}"])


def test_a_link_that_changes_in_a_pause_is_a_cause_of_the_next_speed() -> None:
    found = timeline(failure(step=13), slow_link(1, "100 Mbit/s", at="8 s"))
    (change,) = found.changes
    assert change.causes == ("host 3 fails after step 13", "the link of host 1 has 100 Mbit/s at 8.00 s")
    assert found.stretches[-1].step_s == pytest.approx(slow_step_s(3, 1))
