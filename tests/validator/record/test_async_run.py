"""Runs of asynchronous workers, computed from records of workers and servers."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.records import QueueLength
from scaleproof.simulator.run.run import Run
from scaleproof.validator.record.assemble import assemble
from tests.validator.conftest import MakeScenario
from tests.validator.record.test_assemble import end, recorded, row, spans_of

ASYNCHRONOUS = {"kind": "parameter_server", "workers": 2, "mode": "asynchronous"}
SERVER = 2
# takes 0.05 s of the link's 2 GB/s
PUSH_BYTES = 1e8
# warm-up steps of the scenario
WARMUP = 2


def worker(step_s: float, steps: int, late_s: float = 0.0) -> bytes:
    """Computes for half of each step and waits for the server in the other half, in which its push moves for a moment."""
    ends_s = [late_s + (number + 1) * step_s for number in range(steps)]
    return worker_with(late_s, *((end_s - step_s / 2, end_s - step_s / 2 + 0.1, end_s) for end_s in ends_s))


def worker_with(begin_s: float, *steps: tuple[float, float, float]) -> bytes:
    """A worker with steps (end of the computation, end of the push, end of the step)."""
    rows = []
    for number, (computed_s, pushed_s, end_s) in enumerate(steps):
        step, labels = number - WARMUP + 1, {"group": 0, "match": number}
        rows += [row(Phase.FORWARD, begin_s, computed_s, step), row(Phase.SEND, computed_s, pushed_s, step, **labels)]
        rows += [row(Phase.WAIT, pushed_s, end_s, step, **labels), end(step, end_s)]
        begin_s = end_s
    return recorded(*rows)


def server(*pushes: tuple[int, int, float, bool], steps: int, service_s: float = 0.1) -> bytes:
    """A server with given pushes (worker, number, arrival, whether it counts), and its service time of each that counts."""
    rows, version = [], 0
    labels_of_messages = {"stream": Stream.COMMUNICATION, "group": 0, "size_bytes": PUSH_BYTES}
    for who, number, at_s, counts in pushes:
        labels = {"peer": who, "match": number}
        rows.append(row(Phase.RECEIVE, at_s, at_s, 1, **labels, **labels_of_messages))
        if counts:
            rows.append(row(Phase.OPTIMIZER, at_s, at_s, 1, **labels, group=0))
            rows.append(row(Phase.OPTIMIZER, at_s, at_s + service_s, 1, group=0, match=version))
            version += 1
        rows.append(row(Phase.SEND, at_s + service_s, at_s + service_s, 1, **labels, **labels_of_messages))
    return recorded(*rows, end(steps, 100.0))


def two_workers(make_scenario: MakeScenario, steps: int = 8) -> Run:
    """The second takes twice as long for its steps."""
    own = steps + WARMUP
    pushes = sorted(
        [(0, number, number + 0.6, True) for number in range(own)]
        + [(1, number, 2 * number + 1.3, True) for number in range(own)],
        key=lambda push: push[2],
    )
    ranks = [worker(1.0, own), worker(2.0, own), server(*pushes, steps=steps)]
    return assemble(make_scenario(ASYNCHRONOUS, steps=steps), ranks, steps)


def test_throughput_is_the_sum_over_workers(make_scenario: MakeScenario) -> None:
    run = two_workers(make_scenario)

    assert run.step_time_s == pytest.approx(4 / 3, rel=0.15), "in two seconds they take three steps"
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.breakdown_s["compute"] / run.step_time_s == pytest.approx(0.5, abs=0.05)


def test_staleness_counts_updates_by_others(make_scenario: MakeScenario) -> None:
    servers = two_workers(make_scenario).servers

    assert servers is not None
    assert servers.version_staleness.histogram.keys() == {"0", "1", "2"}, "the fast one updates twice for each of the slow"
    assert servers.dropped == 0
    assert servers.updates_per_s == pytest.approx(1.5, rel=0.15)


def test_staleness_counts_updates_while_the_clock_stands_still(make_scenario: MakeScenario) -> None:
    """Workers push in turn, each twice at every reading of the clock: there is one update by the other in between."""
    readings_s = [2.0 * (number // 2) for number in range(10)]
    pushes = [(who, number, reading_s, True) for number, reading_s in enumerate(readings_s) for who in range(2)]
    own = worker_with(-2.0, *((reading_s,) * 3 for reading_s in readings_s))

    servers = assemble(make_scenario(ASYNCHRONOUS, steps=8), [own, own, server(*pushes, steps=8, service_s=0.0)], 8).servers

    assert servers is not None
    assert servers.version_staleness.histogram.keys() == {"1"}


def test_the_clock_gap_grows_without_synchronisation(make_scenario: MakeScenario) -> None:
    short, long = (two_workers(make_scenario, steps).servers for steps in (4, 12))

    assert short is not None
    assert long is not None
    assert 0 < short.clock_gap.max < long.clock_gap.max


def test_server_busy_time_is_its_service_time(make_scenario: MakeScenario) -> None:
    servers = two_workers(make_scenario).servers

    assert servers is not None
    assert servers.utilisation.max == pytest.approx(0.15, abs=0.03)
    assert servers.busy["compute"] == pytest.approx(0.5, abs=0.05)
    assert servers.queue_length == QueueLength(0.0, 0)


def test_card_utilisation_follows_from_bytes(make_scenario: MakeScenario) -> None:
    """Messages are under way for most of the time; the server gets 1.5 pushes a second, and the fast worker sends one."""
    servers = two_workers(make_scenario, 24).servers

    assert servers is not None
    assert servers.busy["server NIC"] == pytest.approx(1.5 * 0.05, rel=0.1)
    assert servers.busy["worker NIC"] == pytest.approx(0.05, rel=0.1)


def test_a_pull_is_split_where_the_server_replies_to_its_worker(make_scenario: MakeScenario) -> None:
    run = two_workers(make_scenario)

    waits, pulls = (spans_of(run, 0, phase) for phase in (Phase.WAIT, Phase.RECEIVE))
    assert all(stop_s - start_s == pytest.approx(0.1) for start_s, _, stop_s in waits)
    assert all(stop_s - start_s == pytest.approx(0.3) for start_s, _, stop_s in pulls)


def test_overlapped_messages_span_from_sender_to_receiver(make_scenario: MakeScenario) -> None:
    run = two_workers(make_scenario)

    for phase, took_s in ((Phase.RECEIVE, 0.1), (Phase.SEND, 0.3)):
        of_server = spans_of(run, SERVER, phase, Stream.COMMUNICATION)
        assert any(stop_s - start_s == pytest.approx(took_s) for start_s, _, stop_s in of_server)


def test_with_backup_workers_a_step_is_a_round(make_scenario: MakeScenario) -> None:
    strategy: dict[str, Any] = {"kind": "parameter_server", "workers": 2, "backups": 1}
    pushes = [(0, number, number + 0.6, True) for number in range(10)]
    dropped = [(1, number, 2 * number + 1.7, False) for number in range(5)]
    ranks = [worker(1.0, 10), worker(2.0, 5), server(*sorted(pushes + dropped, key=lambda push: push[2]), steps=8)]

    run = assemble(make_scenario(strategy, steps=8), ranks, 8)

    assert run.step_time_s == pytest.approx(1.0)
    assert run.samples == 8, "of one worker"
    assert run.servers is not None
    assert run.servers.dropped == pytest.approx(1 / 3, abs=0.1)
    assert run.servers.version_staleness.max == 0
