from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.common.parameter_server import Asp, ConsistencyModel, Ssp, WorkQuota
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.engine.events import simulate
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.engine.variation import Variation
from scaleproof.simulator.predict import predicted_run
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Use
from scaleproof.simulator.run.run import Run

JITTER = Variation(compute_jitter=0.1, message_jitter=0.3, samples=2)


def run(builder: ProgramBuilder, steps: int = 2) -> Run:
    return predicted_run(simulate(builder.build(), steps), scenario="test", strategy="test", samples=1)


def test_tasks_of_a_stream_run_in_order_over_all_steps() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("a")
    builder.compute(rank, Phase.FORWARD, 1.0)
    builder.compute(rank, Phase.BACKWARD, 2.0)
    timeline = simulate(builder.build(), 3)
    assert timeline.start_s.tolist() == [[0, 1], [3, 4], [6, 7]]
    assert timeline.step_ends_s().tolist() == [3, 6, 9]


def test_a_message_takes_latency_plus_size_over_bandwidth_once_both_sides_are_ready() -> None:
    builder = ProgramBuilder()
    a, b = builder.rank("a"), builder.rank("b")
    sent = builder.compute(a, Phase.FORWARD, 1.0)
    ready = builder.compute(b, Phase.FORWARD, 4.0)
    message = builder.transfer(a, b, 10.0, Path(0.5, 5.0), Phase.SEND, (sent, ready))
    builder.compute(b, Phase.BACKWARD, 1.0, (message,))
    timeline = simulate(builder.build(), 1)
    assert timeline.start_s[0].tolist() == [0, 0, 4, 6.5]
    assert timeline.end_s[0].tolist() == [1, 4, 6.5, 7.5]


def test_two_concurrent_messages_share_a_link() -> None:
    builder = ProgramBuilder()
    link = builder.resource("link", 10.0)
    a, b = builder.rank("a"), builder.rank("b")
    path = Path(0.0, 10.0, (Use(link),))
    short = builder.transfer(a, b, 10.0, path, Phase.SEND, ())
    long = builder.transfer(a, b, 30.0, path, Phase.SEND, ())
    builder.wait(b, Phase.RECEIVE, (short, long))
    timeline = simulate(builder.build(), 1)
    assert timeline.end_s[0].tolist() == [2, 4, 4]


def test_ranks_on_the_same_cores_share_them() -> None:
    builder = ProgramBuilder()
    cores = builder.resource("cores", 2.0)
    for name in "abcd":
        builder.compute(builder.rank(name, uses=(Use(cores),)), Phase.FORWARD, 3.0)
    assert run(builder).step_time_s == pytest.approx(6.0)


def test_idle_cores_do_not_speed_up_a_rank_beyond_its_maximum() -> None:
    builder = ProgramBuilder()
    cores = builder.resource("cores", 2.0)
    builder.compute(builder.rank("a", uses=(Use(cores),)), Phase.FORWARD, 3.0)
    assert run(builder).step_time_s == pytest.approx(3.0)


def test_waiting_for_members_and_transfer_of_a_collective_are_separate() -> None:
    builder = ProgramBuilder()
    fast, slow = builder.rank("fast"), builder.rank("slow")
    ready = [builder.compute(fast, Phase.BACKWARD, 1.0), builder.compute(slow, Phase.BACKWARD, 3.0)]
    total = builder.collective([fast, slow], 10.0, Path(0.0, 5.0), Phase.SYNCHRONISE, ready)
    for rank in (fast, slow):
        builder.compute(rank, Phase.OPTIMIZER, 1.0, (total,))
    result = run(builder)
    assert result.step_time_s == pytest.approx(6.0)
    # fast waits 2, both move for 2: halves of the sums, being means over two ranks
    assert result.breakdown_s["waiting_for_ranks"] == pytest.approx(1.0)
    assert result.breakdown_s["exposed_communication"] == pytest.approx(2.0)
    assert result.breakdown_s["compute"] == pytest.approx(3.0)


def test_overlapped_communication_is_not_exposed() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("a", multiplicity=2)
    first = builder.compute(rank, Phase.BACKWARD, 1.0)
    total = builder.collective([rank], 10.0, Path(0.0, 5.0), Phase.SYNCHRONISE, (first,))
    builder.compute(rank, Phase.BACKWARD, 3.0)
    builder.compute(rank, Phase.OPTIMIZER, 1.0, (total,))
    result = run(builder)
    assert result.step_time_s == pytest.approx(5.0)
    assert result.breakdown_s["exposed_communication"] == pytest.approx(0.0)


def test_a_server_serves_in_order_updates_once_and_releases_all() -> None:
    builder = ProgramBuilder()
    server = builder.rank("server", is_server=True)
    for work_s in (1.0, 2.0):
        worker = builder.rank(f"worker {work_s}")
        grad = builder.compute(worker, Phase.BACKWARD, work_s)
        path = Path(0.0, 10.0)
        push = builder.transfer(worker, server, 10.0, path, Phase.SEND, (grad,))
        serve = builder.serve(server, worker, Phase.OPTIMIZER, 1, 3.0, 2.0, (push,))
        pull = builder.transfer(server, worker, 20.0, path, Phase.RECEIVE, (serve,))
        builder.wait(worker, Phase.SEND, (push,))
        builder.wait(worker, Phase.WAIT, (serve,))
        builder.wait(worker, Phase.RECEIVE, (pull,))
    timeline = simulate(builder.build(), 2)
    # pushes arrive at 2 and 3; sums 2–5 and 5–8; update 8–10; pulls until 12
    assert timeline.step_ends_s().tolist() == [12, 24]
    assert [(b.start_s, b.end_s) for b in timeline.server_busy[0]][:3] == [(2, 5), (5, 8), (8, 10)]


def test_waiting_for_a_server_is_a_separate_part() -> None:
    builder = ProgramBuilder()
    server, worker = builder.rank("server", is_server=True), builder.rank("worker", multiplicity=4)
    grad = builder.compute(worker, Phase.BACKWARD, 1.0)
    path = Path(0.0, 10.0)
    push = builder.transfer(worker, server, 10.0, path, Phase.SEND, (grad,))
    serve = builder.serve(server, worker, Phase.OPTIMIZER, 4, 0.5, 1.0, (push,))
    pull = builder.transfer(server, worker, 20.0, path, Phase.RECEIVE, (serve,))
    builder.wait(worker, Phase.SEND, (push,))
    builder.wait(worker, Phase.WAIT, (serve,))
    builder.wait(worker, Phase.RECEIVE, (pull,))
    result = run(builder)
    assert result.step_time_s == pytest.approx(1 + 1 + 4 * 0.5 + 1 + 2)
    assert result.breakdown_s["waiting_for_server"] == pytest.approx(3.0)
    assert result.breakdown_s["exposed_communication"] == pytest.approx(3.0)
    assert (result.ranks, result.compute_ranks) == (5, 4)


def test_main_spans_of_a_rank_never_overlap_and_communication_is_on_both_sides() -> None:
    builder = ProgramBuilder()
    a, b = builder.rank("a"), builder.rank("b")
    sent = builder.compute(a, Phase.FORWARD, 1.0)
    message = builder.transfer(a, b, 10.0, Path(0.5, 5.0), Phase.SEND, (sent,))
    builder.compute(b, Phase.FORWARD, 1.0, (message,))
    spans = run(builder, 3).spans
    assert spans is not None
    for rank in (0, 1):
        main = spans.where((spans.rank == rank) & (spans.stream == Stream.MAIN))
        order = np.argsort(main.arrival_s, kind="stable")
        assert (main.arrival_s[order][1:] >= main.end_s[order][:-1] - 1e-12).all()
    moving = spans.where(spans.stream == Stream.COMMUNICATION)
    assert sorted(zip(moving.rank.tolist(), moving.phase.tolist(), strict=True)) == [
        (0, Phase.SEND), (0, Phase.SEND), (1, Phase.RECEIVE), (1, Phase.RECEIVE),
    ]  # fmt: skip


def test_flows_into_a_port_with_incast_take_longer_than_their_bytes() -> None:
    builder = ProgramBuilder()
    port = builder.resource("port", 10.0, incast=0.5)
    target = builder.rank("target")
    for name in "abc":
        builder.transfer(builder.rank(name), target, 10.0, Path(1.0, 10.0, (Use(port),)), Phase.SEND, ())
    assert simulate(builder.build(), 1).end_s[0] == pytest.approx([1 + 3 * (1 + 0.5 * 2)] * 3)


def test_a_late_start_delays_only_dependent_tasks() -> None:
    builder = ProgramBuilder()
    late, waits, separate = builder.rank("late"), builder.rank("waits"), builder.rank("separate")
    sent = builder.compute(late, Phase.FORWARD, 1.0)
    message = builder.transfer(late, waits, 10.0, Path(0.0, 5.0), Phase.SEND, (sent,))
    builder.compute(waits, Phase.FORWARD, 1.0)
    builder.compute(waits, Phase.BACKWARD, 1.0, (message,))
    builder.compute(separate, Phase.FORWARD, 1.0)
    program = builder.build()
    on_time = simulate(program, 2)
    delayed = simulate(program, 2, Variation(start_s=np.array([5.0, 0.5, 0.0])))
    assert on_time.start_s.tolist() == [[0, 1, 0, 3, 0], [1, 2, 4, 5, 1]]
    assert delayed.start_s.tolist() == [[5, 6, 0.5, 8, 0], [6, 7, 9, 10, 1]]


def test_a_collective_waits_for_a_member_that_starts_late() -> None:
    builder = ProgramBuilder()
    members = [builder.rank("a"), builder.rank("b")]
    ready = [builder.compute(rank, Phase.BACKWARD, 1.0) for rank in members]
    builder.collective(members, 10.0, Path(0.0, 5.0), Phase.SYNCHRONISE, ready)
    timeline = simulate(builder.build(), 1, Variation(start_s=np.array([0.0, 4.0])))
    assert timeline.end_s[0].tolist() == [1, 5, 7]


def jittery() -> ProgramBuilder:
    builder = ProgramBuilder()
    a, b = builder.rank("a"), builder.rank("b")
    work = builder.compute(a, Phase.FORWARD, 2.0)
    builder.transfer(a, b, 10.0, Path(0.5, 5.0), Phase.SEND, (work,))
    return builder


def test_jitter_multiplies_work_and_bytes_but_not_latency() -> None:
    program = jittery().build()
    timeline = simulate(program, 3, JITTER, sample=1)
    factors = np.stack([JITTER.factors(program, step)[:, 1] for step in range(3)])
    assert timeline.end_s - timeline.start_s == pytest.approx(np.array([0.0, 0.5]) + 2 * factors)
    assert len(np.unique(factors)) == 6


def test_jitter_has_mean_one() -> None:
    builder = ProgramBuilder()
    for number in range(1000):
        builder.compute(builder.rank(str(number)), Phase.FORWARD, 3.0)
    timeline = simulate(builder.build(), 2, JITTER)
    took_s = timeline.end_s - timeline.start_s
    # the standard error of the mean of 2000 is 0.3 / √2000 = 0.0067
    assert took_s.mean() == pytest.approx(3.0, abs=4 * 0.0067)
    assert took_s.std() == pytest.approx(0.3, rel=0.1)


def test_server_jitter_affects_requests_but_not_the_update() -> None:
    builder = ProgramBuilder()
    server, worker = builder.rank("server", is_server=True), builder.rank("worker", multiplicity=4)
    builder.serve(server, worker, Phase.OPTIMIZER, 4, 0.5, 1.0, ())
    program = builder.build()
    (factor,) = JITTER.factors(program, 0)[:, 0]
    timeline = simulate(program, 1, JITTER)
    assert factor != 1
    assert [b.end_s - b.start_s for b in timeline.server_busy[server]] == pytest.approx([4 * 0.5 * factor, 1.0])


def asynchronous_workers(work_s: list[float], consistency: ConsistencyModel, units: WorkQuota | None = None) -> Program:
    """Workers that compute for the given time, send a request that a server processes in 0.1 s, and continue at its reply."""
    builder = ProgramBuilder(consistency, units)
    server = builder.rank("server", is_server=True)
    for number, seconds in enumerate(work_s):
        rank = builder.rank(f"worker {number}")
        work = builder.compute(rank, Phase.FORWARD, seconds)
        served = builder.serve(server, rank, Phase.OPTIMIZER, 1, 0.1, 0.0, (work,))
        builder.wait(rank, Phase.WAIT, (served,))
    return builder.build()


def steps_taken(timeline: Timeline) -> list[int]:
    """Number of steps of each worker."""
    return np.isfinite(timeline.end_s[:, 2::3]).sum(axis=0).tolist()


def test_asynchronous_ranks_take_steps_independently() -> None:
    timeline = simulate(asynchronous_workers([1.0, 3.0], Asp()), 20)
    fast, slow = steps_taken(timeline)
    assert fast + slow == 2 * 20
    assert fast == pytest.approx(3.1 / 1.1 * slow, abs=2)
    for worker, alone_s in ((0, 1.1), (1, 3.1)):
        ends_s = timeline.end_s[: (fast, slow)[worker], 3 * worker + 2]
        assert np.median(np.diff(ends_s)) == pytest.approx(alone_s)


def test_no_rank_takes_more_than_ten_times_the_requested_steps() -> None:
    assert max(steps_taken(simulate(asynchronous_workers([0.01, *[1000.0] * 19], Asp()), 5))) == 50


def test_ssp_keeps_ranks_within_the_staleness_bound() -> None:
    timeline = simulate(asynchronous_workers([1.0, 3.0], Ssp(2)), 20)
    fast, slow = steps_taken(timeline)
    assert abs(fast - slow) <= 2
    # the fast one is two steps ahead of the slow one when it begins, as soon as it could be
    begins_s, slow_s = timeline.start_s[:, 0], timeline.applied.applied_s[:, 4]
    gaps = [step - int((slow_s <= begin_s).sum()) for step, begin_s in enumerate(begins_s[:slow])]
    assert max(gaps) == gaps[-1] == 2


@pytest.mark.parametrize(("shared", "taken"), [(False, [4, 4, 3]), (True, [6, 3, 2])])
def test_work_units_are_assigned_statically_or_to_free_ranks(shared: bool, taken: list[int]) -> None:
    """Units of 1.1, 2.1 and 3.1 seconds or a little more: taken ones begin until 4.4 or 4.2."""
    timeline = simulate(asynchronous_workers([1.0, 2.0, 3.0], Asp(), WorkQuota(11, shared)), 99)
    assert steps_taken(timeline) == taken


def test_a_late_rank_takes_work_units_from_its_start_on() -> None:
    program = asynchronous_workers([1.0, 1.0], Asp(), WorkQuota(6, shared=True))
    assert steps_taken(simulate(program, 9, Variation(start_s=np.array([0.0, 0.0, 3.5])))) == [5, 1]


def test_a_private_link_is_equivalent_to_a_lower_maximum_rate() -> None:
    """Two messages of each worker over its own link, of which each gets half, and all over the server's."""

    def program(own: bool) -> Program:
        builder = ProgramBuilder(Asp())
        port = builder.resource("port", 4.0)
        server = builder.rank("server", is_server=True)
        for number in range(4):
            rank = builder.rank(f"worker {number}")
            work = builder.compute(rank, Phase.FORWARD, 1.0 + number)
            uses = (Use(builder.resource(f"link {number}", 3.0), 2.0),) if own else ()
            push = builder.transfer(rank, server, 5.0, Path(0.1, 3.0 if own else 1.5, (*uses, Use(port))), Phase.SEND, (work,))
            served = builder.serve(server, rank, Phase.OPTIMIZER, 1, 0.1, 0.0, (push,))
            builder.wait(rank, Phase.WAIT, (served,))
        return builder.build()

    linked, limited = (simulate(program(own), 12) for own in (True, False))
    assert linked.end_s == pytest.approx(limited.end_s, nan_ok=True)
