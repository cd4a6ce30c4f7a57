"""Transfer times, computed from the separate records of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run
from scaleproof.validator.record.assemble import assemble, finished_steps, gathered, rank_names
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN
from tests.validator.conftest import MakeScenario

RING = {"kind": "data_parallel", "workers": 2}
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
SERVERS = {"kind": "parameter_server", "workers": 1, "servers": 2}


def row(phase: int, arrival_s: float, end_s: float, step: int = 1, **others: Any) -> dict[str, Any]:
    labels = {"stream": Stream.MAIN, "size_bytes": 0.0}
    labels |= dict.fromkeys(("stage", "microbatch", "peer", "group", "match", "communication"), -1)
    return labels | {"step": step, "phase": phase, "arrival_s": arrival_s, "start_s": arrival_s, "end_s": end_s} | others


def end(step: int, at_s: float) -> dict[str, Any]:
    return row(END_OF_STEP, at_s, at_s, step)


def recorded(*rows: dict[str, Any]) -> bytes:
    return np.array([tuple(one[name] for name in RAW_SPAN.names or ()) for one in rows], dtype=RAW_SPAN).tobytes()


def spans_of(run: Run, rank: int, phase: Phase, stream: Stream = Stream.MAIN) -> list[tuple[float, float, float]]:
    assert run.spans is not None
    own = run.spans.where((run.spans.rank == rank) & (run.spans.phase == phase) & (run.spans.stream == stream))
    return list(zip(own.arrival_s.tolist(), own.start_s.tolist(), own.end_s.tolist(), strict=True))


def test_seconds_count_from_the_end_of_the_warm_up_on_the_last_rank(make_scenario: MakeScenario) -> None:
    ranks = [
        recorded(row(Phase.FORWARD, 0, 9, 0), end(0, 9), row(Phase.FORWARD, 10, 12), end(1, 12)),
        recorded(end(0, 10), row(Phase.FORWARD, 10, 13), end(1, 13)),
    ]

    run = assemble(make_scenario(RING, steps=1), ranks, 1)

    assert run.step_times_s == (3.0,)
    assert spans_of(run, 0, Phase.FORWARD) == [(0.0, 0.0, 2.0)]
    assert run.breakdown_s["compute"] == pytest.approx(2.5), "mean over the ranks"
    assert run.breakdown_s["other"] == pytest.approx(0.5)


def test_the_transfer_of_a_collective_starts_with_its_last_member(make_scenario: MakeScenario) -> None:
    def worker(come_s: float) -> bytes:
        bucket = row(Phase.SYNCHRONISE, come_s, 8, stream=Stream.COMMUNICATION, match=0)
        return recorded(end(0, 0), bucket, row(Phase.SYNCHRONISE, come_s, 8), end(1, 8))

    run = assemble(make_scenario(RING, steps=1), [worker(2), worker(5)], 1)

    assert spans_of(run, 0, Phase.SYNCHRONISE, Stream.COMMUNICATION) == [(2, 5, 8)]
    assert spans_of(run, 0, Phase.SYNCHRONISE) == [(2, 5, 8)]
    assert spans_of(run, 1, Phase.SYNCHRONISE) == [(5, 5, 8)]
    assert run.breakdown_s["waiting_for_ranks"] == pytest.approx(1.5)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(3.0)


def test_buckets_finished_earlier_do_not_count_as_exposed(make_scenario: MakeScenario) -> None:
    def worker(come_s: float) -> bytes:
        early = row(Phase.SYNCHRONISE, 1, 2, stream=Stream.COMMUNICATION, match=0)
        late = row(Phase.SYNCHRONISE, come_s, 8, stream=Stream.COMMUNICATION, match=1)
        return recorded(end(0, 0), early, late, row(Phase.SYNCHRONISE, come_s, 8), end(1, 8))

    run = assemble(make_scenario(RING, steps=1), [worker(4), worker(6)], 1)

    assert spans_of(run, 0, Phase.SYNCHRONISE) == [(4, 6, 8)]


@pytest.mark.parametrize(
    ("sent_s", "awaited_s", "moves_s"), [(5.0, 2.0, 5.0), (2.0, 5.0, 5.0)], ids=["receiver waits", "sender waits"]
)
def test_a_transfer_starts_once_sender_and_receiver_are_ready(
    sent_s: float, awaited_s: float, moves_s: float, make_scenario: MakeScenario
) -> None:
    sender = recorded(end(0, 0), row(Phase.SEND, sent_s, 7, peer=1, match=2), end(1, 9))
    receiver = recorded(end(0, 0), row(Phase.RECEIVE, awaited_s, 8, peer=0, match=2), end(1, 9))

    run = assemble(make_scenario(PIPELINE, steps=1), [sender, receiver], 1)

    assert spans_of(run, 0, Phase.SEND) == [(sent_s, moves_s, 7)]
    assert spans_of(run, 1, Phase.RECEIVE) == [(awaited_s, moves_s, 8)]
    assert run.breakdown_s["bubble"] == pytest.approx(1.5)


def test_a_workers_wait_is_split_where_the_last_server_sends(make_scenario: MakeScenario) -> None:
    worker = recorded(end(0, 0), row(Phase.WAIT, 2, 9, size_bytes=12.0), end(1, 9))
    servers = [recorded(end(0, 0), row(Phase.SEND, sends_s, 8), end(1, 8)) for sends_s in (4, 6)]

    run = assemble(make_scenario(SERVERS, steps=1), [worker, *servers], 1)

    assert spans_of(run, 0, Phase.WAIT) == [(2, 2, 6)]
    assert spans_of(run, 0, Phase.RECEIVE) == [(6, 6, 9)]
    assert run.breakdown_s["waiting_for_server"] == pytest.approx(4.0)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(3.0)


def test_unfinished_steps_do_not_count() -> None:
    whole = recorded(end(0, 0), row(Phase.FORWARD, 1, 2), end(1, 2), row(Phase.FORWARD, 3, 4, 2), end(2, 4))
    torn = whole[:-10]

    assert finished_steps([whole, whole]) == 2
    assert finished_steps([whole, torn]) == 1
    assert finished_steps([whole, b""]) == 0


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (RING, ("worker 0", "worker 1")),
        (PIPELINE, ("stage 0", "stage 1")),
        (SERVERS, ("worker 0", "server 0", "server 1")),
        (
            {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2},
            ("worker 0 stage 0", "worker 1 stage 0", "worker 0 stage 1", "worker 1 stage 1"),
        ),
    ],
)
def test_ranks_are_named_by_their_role(strategy: dict[str, Any], names: tuple[str, ...], make_scenario: MakeScenario) -> None:
    assert rank_names(make_scenario(strategy).strategy) == names


def outcome(**others: Any) -> dict[str, Any]:
    """Data that a rank reports in addition to its spans, on a quiet machine."""
    quiet = {"elapsed_s": 1.0, "cores_s": {"0": 1.0, "1": 0.0}, "own_s": 1.0}
    reported = {"provenance": {"host": "here", "date": "today"}, "losses": {"1": 0.5}, "notes": {}, "corrections": []}
    return reported | {"machine": "a", "usage": quiet, "memory_bytes": {}} | others


def worker_with_a_bucket(come_s: float, off_s: float) -> bytes:
    """Records of a worker with one bucket and a clock offset."""
    bucket = row(Phase.SYNCHRONISE, come_s + off_s, 8 + off_s, stream=Stream.COMMUNICATION, match=0)
    return recorded(end(0, off_s), bucket, row(Phase.SYNCHRONISE, come_s + off_s, 8 + off_s), end(1, 8 + off_s))


def test_times_of_different_clocks_are_corrected_before_comparison(make_scenario: MakeScenario) -> None:
    far = outcome(
        machine="b",
        corrections=[
            {"zero_s": 0.0, "offset_s": -7200.0, "drift": 0.0, "uncertainty_s": 1e-4, "drift_uncertainty": 0.0},
            {"zero_s": 0.0, "offset_s": 0.0, "drift": -1e-6, "uncertainty_s": 1e-3, "drift_uncertainty": 0.0},
        ],
    )

    run = gathered(
        make_scenario(RING, steps=1), [worker_with_a_bucket(2, 0.0), worker_with_a_bucket(5, 7200.0)], [outcome(), far]
    )

    assert spans_of(run, 0, Phase.SYNCHRONISE)[0] == pytest.approx((2, 5, 8), abs=1e-4)
    assert run.provenance["clocks"] == "aligned to ±1100 us, drift up to 1.0 ppm"
    assert "warnings" not in run.provenance


def test_unaligned_clocks_give_a_run_with_a_warning(make_scenario: MakeScenario) -> None:
    vague = {"zero_s": 0.0, "offset_s": 0.0, "drift": 0.0, "uncertainty_s": 4.0, "drift_uncertainty": 0.0}

    run = gathered(make_scenario(RING, steps=1), [worker_with_a_bucket(2, 0.0)] * 2, [outcome(), outcome(corrections=[vague])])

    assert run.step_time_s == pytest.approx(8.0)
    assert run.provenance["warnings"].startswith("clocks agree only to 50 % of a step")


def test_a_machine_busy_with_other_work_gives_a_warning(make_scenario: MakeScenario) -> None:
    busy = {"elapsed_s": 10.0, "cores_s": {"0": 10.0, "1": 6.0}, "own_s": 4.0}
    ranks = [worker_with_a_bucket(2, 0.0)] * 2

    run = gathered(make_scenario(RING, steps=1), ranks, [outcome(usage=busy), outcome(usage=busy)])
    quiet = gathered(make_scenario(RING, steps=1), ranks, [outcome(), outcome()])

    assert run.provenance["foreign_load"] == "40% of the cores"
    assert run.provenance["warnings"] == "other work used 40 % of the cores during the run; measure on a quiet machine"
    assert quiet.provenance["foreign_load"] == "0% of the cores"
    assert (run.disturbed, quiet.disturbed) == (run.provenance["warnings"], "")
    assert "warnings" not in quiet.provenance


def test_memory_is_that_of_the_fullest_training_rank(make_scenario: MakeScenario) -> None:
    sizes = [{"allocated": 3e9, "reserved": 1e9}, {"allocated": 9e9, "reserved": 0.0}, {"allocated": 9e9, "reserved": 0.0}]
    worker = recorded(end(0, 0), row(Phase.WAIT, 2, 9), end(1, 9))
    servers = [recorded(end(0, 0), row(Phase.SEND, 4, 8), end(1, 8))] * 2

    run = gathered(make_scenario(SERVERS, steps=1), [worker, *servers], [outcome(memory_bytes=size) for size in sizes])

    assert run.memory_bytes_per_rank == 3e9
    assert run.memory_bytes == sizes[0]


def test_a_push_precedes_the_wait_for_its_reply(make_scenario: MakeScenario) -> None:
    """The kernel took the gradients at once, and moved them while the rank seemed to wait for the parameters; the receive was
    posted before any of it."""
    scenario = make_scenario({"kind": "gather_average", "workers": 2}, steps=1)
    gradients, parameters = {"peer": 0, "match": 0}, {"peer": 0, "match": 1}
    main = [
        row(Phase.RECEIVE, 3.0, 6.0, **gradients | {"peer": 1, "start_s": 0.5}),
        row(Phase.OPTIMIZER, 6.0, 7.0),
        row(Phase.SEND, 7.0, 9.0, **parameters | {"peer": 1}),
    ]
    other = [row(Phase.SEND, 2.0, 2.5, **gradients), row(Phase.SYNCHRONISE, 2.5, 9.0, **parameters)]

    run = assemble(scenario, [recorded(end(0, 0.0), *own, end(1, 9.0)) for own in (main, other)], 1)

    assert run.spans is not None
    own = run.spans.where((run.spans.rank == 1) & (run.spans.stream == Stream.MAIN))
    assert own.arrival_s.tolist() == [2.0, 6.0]
    assert own.start_s.tolist() == [2.0, 7.0], "the main worker's update is waited for"
    assert own.end_s.tolist() == [6.0, 9.0]
    receive = run.spans.where((run.spans.phase == Phase.RECEIVE) & (run.spans.stream == Stream.MAIN))
    assert (receive.arrival_s[0], receive.start_s[0]) == (3.0, 3.0)


def test_a_push_lasts_until_its_server_received_it(make_scenario: MakeScenario) -> None:
    """The kernel took it at once; the server noted its arrival, and replies later."""
    labels = {"group": 0, "match": 0}
    push, wait = row(Phase.SEND, 1, 1.5, **labels), row(Phase.WAIT, 1.5, 9, size_bytes=12.0, **labels)
    came = row(Phase.RECEIVE, 4, 4, peer=0, stream=Stream.COMMUNICATION, **labels)
    server = recorded(end(0, 0), came, row(Phase.SEND, 6, 8, **labels), end(1, 8))

    run = assemble(make_scenario(SERVERS | {"servers": 1}, steps=1), [recorded(end(0, 0), push, wait, end(1, 9)), server], 1)

    assert spans_of(run, 0, Phase.SEND) == [(1, 1, 4)]
    assert spans_of(run, 0, Phase.WAIT) == [(4, 4, 6)]
    assert spans_of(run, 0, Phase.RECEIVE) == [(6, 6, 9)]
    assert spans_of(run, 1, Phase.RECEIVE, Stream.COMMUNICATION) == [(1, 1, 4)]
    assert run.breakdown_s["waiting_for_server"] == pytest.approx(2.0)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(6.0)


@pytest.mark.parametrize("early_s", [0.0, 3.0])
def test_a_fully_busy_rank_has_no_other_time(early_s: float, make_scenario: MakeScenario) -> None:
    """It came out of the warm-up earlier than the other one, and not out of the last step, or the reverse."""
    begins_s, ends_s = (4 - early_s, 10.0) if early_s else (4.0, 7.0)
    early = recorded(end(0, begins_s), row(Phase.FORWARD, begins_s, ends_s), end(1, ends_s))
    other = recorded(end(0, 4), row(Phase.FORWARD, 4, 10), end(1, 10))

    run = assemble(make_scenario(RING, steps=1), [early, other], 1)

    assert run.step_time_s == pytest.approx(6.0)
    assert run.breakdown_s["other"] == pytest.approx(0.0, abs=1e-9)
    assert run.breakdown_s["compute"] == pytest.approx(6.0)


def test_messages_during_computing_are_hidden(make_scenario: MakeScenario) -> None:
    """Two equal messages: the first is waited for and takes a second; the other arrives while the receiver is busy."""
    first, second = {"match": 0, "size_bytes": 8.0}, {"match": 2, "size_bytes": 8.0}
    sender = [row(Phase.FORWARD, 0, 2), row(Phase.SEND, 2, 2.1, peer=1, **first)]
    sender += [row(Phase.FORWARD, 2.1, 4), row(Phase.SEND, 4, 4.1, peer=1, **second), row(Phase.BACKWARD, 4.1, 9)]
    receiver = [row(Phase.RECEIVE, 0, 3, peer=0, **first), row(Phase.FORWARD, 3, 6)]
    receiver += [row(Phase.RECEIVE, 6, 6, peer=0, **second), row(Phase.FORWARD, 6, 9)]

    run = assemble(make_scenario(PIPELINE, steps=1), [recorded(end(0, 0), *own, end(1, 9)) for own in (sender, receiver)], 1)

    assert spans_of(run, 0, Phase.SEND, Stream.COMMUNICATION) == [(2, 2, 3), (4, 4, 5)]
    assert spans_of(run, 1, Phase.RECEIVE, Stream.COMMUNICATION) == [(2, 2, 3), (4, 4, 5)]
    assert run.communication_s["exposed"] == pytest.approx((0.1 + 1.0) / 2)
    assert run.communication_s["hidden"] == pytest.approx((1.9 + 1.0) / 2)
