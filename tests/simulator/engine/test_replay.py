"""Replay compared with the events engine, which is the reference, and with closed forms."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaleproof.simulator import engine
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import events, is_contended, replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.engine.variation import NONE, Variation
from scaleproof.simulator.program import MAIN_STREAM, Path, Program, ProgramBuilder, Use
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.scenario_job import job_of


@st.composite
def programs(draw: st.DrawFn, capacity: float) -> Program:
    """Random programs of a few ranks that compute, send and reduce, over links of the given capacity."""
    builder = ProgramBuilder()
    seconds = st.floats(0.0, 10.0)
    links = [builder.resource(f"link {i}", capacity) for i in range(3)]
    ranks = [builder.rank(f"rank {i}") for i in range(draw(st.integers(1, 4)))]
    rank, link = st.sampled_from(ranks), st.sampled_from(links)
    for task in range(draw(st.integers(1, 20))):
        after = draw(st.lists(st.integers(0, task - 1), max_size=6, unique=True)) if task else []
        path = Path(draw(seconds), draw(st.floats(0.5, 2.0)), (Use(draw(link), draw(st.sampled_from([1.0, 2.0]))),))
        match draw(st.integers(0, 2)):
            case 0:
                builder.compute(draw(rank), Phase.FORWARD, draw(seconds), after)
            case 1:
                builder.transfer(draw(rank), draw(rank), draw(seconds), path, Phase.SEND, after)
            case _:
                members = draw(st.lists(rank, min_size=1, unique=True))
                builder.collective(members, draw(seconds), path, Phase.SYNCHRONISE, after)
        if draw(st.booleans()):
            builder.carry(task, draw(st.lists(st.integers(0, task), max_size=2, unique=True)))
    return builder.build()


@st.composite
def server_programs(draw: st.DrawFn) -> Program:
    """Workers that compute, send requests to some servers, wait for replies and continue; no two requests arrive at once."""
    builder = ProgramBuilder()
    # durations below rounding could end before they begin
    seconds = st.floats(0.0, 10.0).map(lambda value: value if value > 1e-9 else 0.0)
    servers = [builder.rank(f"server {i}", is_server=True) for i in range(draw(st.integers(1, 3)))]
    update_s, buckets = ([draw(some) for _ in servers] for some in (seconds, st.integers(1, 2)))
    for worker in range(draw(st.integers(1, 4))):
        rank = builder.rank(f"worker {worker}")
        work = builder.compute(rank, Phase.FORWARD, draw(seconds))
        served = []
        for server in draw(st.lists(st.sampled_from(servers), min_size=1, max_size=4)):
            for bucket in range(buckets[server]):
                path = Path(draw(seconds) + len(served) / 7 + worker / 97 + 1e-3, 1.0)
                sent = builder.transfer(rank, server, draw(seconds), path, Phase.SEND, (work,))
                numbers = draw(st.integers(1, 3)), draw(seconds), update_s[server]
                served.append(builder.serve(server, rank, Phase.OPTIMIZER, *numbers, (sent,), bucket))
        builder.wait(rank, Phase.WAIT, served)
        builder.compute(rank, Phase.OPTIMIZER, draw(seconds))
    return builder.build()


@st.composite
def varied(draw: st.DrawFn, programs: st.SearchStrategy[Program]) -> tuple[Program, Variation]:
    """A program, and how its runs differ."""
    program = draw(programs)
    ranks, jitter = len(program.ranks.names), st.sampled_from([0.0, 0.1, 1.0])
    starts = st.lists(st.floats(0.0, 10.0), min_size=ranks, max_size=ranks).map(np.array)
    return program, Variation(
        start_s=draw(st.none() | starts), compute_jitter=draw(jitter), message_jitter=draw(jitter),
        seed=draw(st.integers(0, 99)), samples=draw(st.integers(1, 3)),
    )  # fmt: skip


def assert_same(timeline: Timeline, reference: Timeline) -> None:
    assert timeline.start_s == pytest.approx(reference.start_s, rel=1e-9, abs=1e-12)
    assert timeline.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)
    assert timeline.server_busy.keys() == reference.server_busy.keys()
    for rank, stretches in timeline.server_busy.items():
        assert [busy.step for busy in stretches] == [busy.step for busy in reference.server_busy[rank]]
        ours, theirs = (
            [time for busy in one for time in (busy.start_s, busy.end_s)] for one in (stretches, reference.server_busy[rank])
        )
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@given(varied(programs(capacity=1e9) | server_programs()), st.integers(1, 3))
def test_each_sample_equals_events_without_contention(case: tuple[Program, Variation], steps: int) -> None:
    program, variation = case
    together = list(replay.replay(program, steps, durations_s(program), variation))
    for sample in range(variation.samples):
        replayed = replay.simulate(program, steps, variation, sample)
        assert not is_contended(replayed)
        assert_same(replayed, events.simulate(program, steps, variation, sample))
        for step, (start, end) in enumerate(together):
            assert start.shape == end.shape == (len(program), variation.samples)
            assert (start[:, sample] == replayed.start_s[step]).all()
            assert (end[:, sample] == replayed.end_s[step]).all()


@given(programs(capacity=1e9), st.data())
def test_order_hints_never_change_the_result(program: Program, data: st.DataObject) -> None:
    hints = data.draw(st.lists(st.integers(-1, 30), min_size=len(program), max_size=len(program)))
    hinted = replay.simulate(replace(program, slot=np.array(hints, dtype=np.int32)), 2)
    plain = replay.simulate(program, 2)
    assert (hinted.start_s == plain.start_s).all()
    assert (hinted.end_s == plain.end_s).all()


@given(programs(capacity=2.0), st.integers(1, 3))
def test_programs_that_replay_reports_as_uncontended_equal_events(program: Program, steps: int) -> None:
    """Links are short here: either the check finds out, or the times agree."""
    replayed, reference = replay.simulate(program, steps), events.simulate(program, steps)
    if not is_contended(replayed):
        assert replayed.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)
    # sharing never makes a task end earlier
    assert (replayed.end_s <= reference.end_s * (1 + 1e-9) + 1e-12).all()
    chosen = engine.simulate(program, steps)
    assert chosen.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)


def two_messages(capacity: float, second_after_first: bool) -> Program:
    builder = ProgramBuilder()
    link = builder.resource("link", capacity)
    a, b = builder.rank("a"), builder.rank("b")
    path = Path(0.5, 1.0, (Use(link),))
    first = builder.transfer(a, b, 3.0, path, Phase.SEND, ())
    builder.transfer(a, b, 3.0, path, Phase.SEND, (first,) if second_after_first else ())
    return builder.build()


def test_only_concurrent_messages_count_as_contention() -> None:
    assert is_contended(replay.simulate(two_messages(1.0, second_after_first=False), 1))
    assert not is_contended(replay.simulate(two_messages(1.0, second_after_first=True), 1))
    assert not is_contended(replay.simulate(two_messages(2.0, second_after_first=False), 1))


def test_folded_ranks_that_share_a_resource_take_longer_in_replay() -> None:
    builder = ProgramBuilder()
    link = builder.resource("link", 2.0)
    a = builder.rank("a", multiplicity=4)
    builder.transfer(a, a, 6.0, Path(0.0, 1.0, (Use(link, 4.0),)), Phase.SEND, ())
    timeline = replay.simulate(builder.build(), 1)
    assert timeline.end_s[0, 0] == pytest.approx(12.0)
    assert not is_contended(timeline)


def ring(chunk_s: list[float]) -> Program:
    """A message per rank and step; each follows the rank's own last message and the one received last."""
    builder = ProgramBuilder()
    count = len(chunk_s)
    for rank in range(count):
        builder.rank(str(rank))
    for rank, seconds in enumerate(chunk_s):
        builder.transfer(rank, (rank + 1) % count, 1.0, Path(0.0, 1 / seconds), Phase.SEND, ())
    for rank in range(count):
        builder.carry(rank, (rank, (rank - 1) % count))
    return builder.build()


def last_ends_s(program: Program, steps: int, variation: Variation = NONE) -> np.ndarray:
    *_, (_, end) = replay.replay(program, steps, durations_s(program), variation)
    return end


@pytest.mark.parametrize("ranks", [2, 3, 8, 33])
def test_time_of_a_uniform_ring_is_its_steps_times_the_message_time(ranks: int) -> None:
    assert last_ends_s(ring([0.25] * ranks), 2 * (ranks - 1)) == pytest.approx(2 * (ranks - 1) * 0.25)


def test_the_slowest_rank_determines_the_time_of_a_ring() -> None:
    program, steps = ring([0.1, 0.1, 0.7, 0.1]), 40
    end_s = last_ends_s(program, steps)
    assert end_s.max() == pytest.approx(steps * 0.7)
    assert events.simulate(program, steps).end_s[-1].max() == pytest.approx(end_s.max(), rel=1e-9)


def test_jitter_costs_more_than_its_mean_where_ranks_wait_for_one_another() -> None:
    """The expected maximum is above the maximum of expectations; alone, a rank's mean stays."""
    jitter = Variation(message_jitter=0.3, samples=200)
    assert last_ends_s(ring([1.0] * 8), 50, jitter).max(axis=0).mean() > 1.1 * 50
    assert last_ends_s(ring([1.0]), 50, jitter).mean() == pytest.approx(50, rel=0.02)


def test_a_server_releases_each_bucket_once_it_is_complete() -> None:
    """Arrivals at 1 and 2 for one bucket, at 4 for another; two seconds each, updates of one: 1–3, 3–5, 5–6, then 6–8, 8–9."""
    builder = ProgramBuilder()
    server, ends = builder.rank("server", is_server=True), []
    for arrival_s, bucket in ((1.0, 1), (2.0, 1), (4.0, 0)):
        rank = builder.rank(f"worker of {arrival_s}")
        work = builder.compute(rank, Phase.FORWARD, arrival_s)
        ends.append(builder.serve(server, rank, Phase.OPTIMIZER, 1, 2.0, 1.0, (work,), bucket))
        builder.wait(rank, Phase.WAIT, ends[-1:])
    program = builder.build()
    for timeline in (replay.simulate(program, 1), events.simulate(program, 1)):
        assert timeline.end_s[0, ends].tolist() == [6, 6, 9]
        busy = [(busy.start_s, busy.end_s) for busy in timeline.server_busy[server]]
        assert busy == [(1, 3), (3, 5), (5, 6), (6, 8), (8, 9)]


def test_a_server_whose_cores_others_need_is_contended() -> None:
    def program(cores: float) -> Program:
        builder = ProgramBuilder()
        uses = (Use(builder.resource("cores", cores)),)
        server, worker = builder.rank("server", is_server=True, uses=uses), builder.rank("worker", uses=uses)
        work = builder.compute(worker, Phase.FORWARD, 1.0)
        builder.serve(server, worker, Phase.OPTIMIZER, 1, 0.0, 5.0, (work,))
        builder.compute(worker, Phase.BACKWARD, 1.0)
        return builder.build()

    for cores, contended in ((1.0, True), (2.0, False)):
        timeline = replay.simulate(program(cores), 1)
        assert is_contended(timeline) is contended
        assert_same(engine.simulate(program(cores), 1), events.simulate(program(cores), 1))


def test_overtaking_requests_and_cycles_are_rejected() -> None:
    builder = ProgramBuilder()
    server, worker = builder.rank("server", is_server=True), builder.rank("worker")
    builder.serve(server, worker, Phase.OPTIMIZER, 1, 1.0, 1.0, ())
    work = builder.compute(worker, Phase.FORWARD, 1.0)
    builder.serve(server, worker, Phase.OPTIMIZER, 1, 1.0, 1.0, (work,))
    with pytest.raises(ValueError, match="overtakes one of the step before"):
        replay.simulate(builder.build(), 2)
    circle = ProgramBuilder()
    rank = circle.rank("a")
    circle.compute(rank, Phase.FORWARD, 1.0, (1,))
    circle.compute(rank, Phase.FORWARD, 1.0)
    with pytest.raises(ValueError, match="form a cycle"):
        replay.simulate(circle.build(), 1)


@pytest.mark.parametrize(("incast", "contended"), [(0.0, False), (0.25, False), (0.3, True)])
def test_incast_causes_contention_for_concurrent_flows(incast: float, contended: bool) -> None:
    """Two of rate 1 need 2 of a capacity of 2.5, which incast cuts to 2.5 / (1 + incast)."""
    builder = ProgramBuilder()
    port = builder.resource("port", 2.5, incast)
    a, b = builder.rank("a"), builder.rank("b")
    for _ in range(2):
        builder.transfer(a, b, 3.0, Path(0.0, 1.0, (Use(port),)), Phase.SEND, ())
    program = builder.build()
    assert is_contended(replay.simulate(program, 1)) is contended
    assert bool(events.simulate(program, 1).end_s.max() > 3 * (1 + 1e-9)) is contended


def test_folded_messages_have_incast_among_themselves() -> None:
    builder = ProgramBuilder()
    port = builder.resource("port", 4.0, 0.5)
    a, b = builder.rank("a", multiplicity=3), builder.rank("b")
    builder.transfer(a, b, 8.0, Path(1.0, 100.0, (Use(port, 3.0),)), Phase.SEND, ())
    timeline = replay.simulate(builder.build(), 1)
    assert timeline.end_s[0, 0] == pytest.approx(1 + 3 * 8 / (4 / (1 + 0.5 * 2)))
    assert not is_contended(timeline)
    assert_same(timeline, events.simulate(builder.build(), 1))


def pushes(capacity: float, together: int) -> Program:
    """Messages of 1, 2 and 3 bytes over one port."""
    builder = ProgramBuilder()
    port = builder.resource("port", capacity)
    a, b = builder.rank("a"), builder.rank("b")
    for size_bytes in (1.0, 2.0, 3.0):
        builder.transfer(a, b, size_bytes, Path(0.5, 1.0, (Use(port),)), Phase.SEND, (), together=together)
    return builder.build()


def test_declared_concurrent_tasks_share_like_in_events() -> None:
    """Three at a third of the port, then two at a half, then one at its own rate."""
    declared = pushes(1.0, together=0)
    shared = replay.simulate_concurrent(declared, 1)
    assert shared.end_s[0] == pytest.approx(np.array([3.5, 5.5, 6.5]))
    assert_same(shared, events.simulate(declared, 1))
    assert replay.simulate(declared, 1).end_s[0].tolist() == [1.5, 2.5, 3.5]


@given(programs(capacity=2.0), st.integers(1, 3))
def test_without_declared_sets_nothing_is_shared(program: Program, steps: int) -> None:
    assert_same(replay.simulate_concurrent(program, steps), replay.simulate(program, steps))


@pytest.mark.parametrize(("placement", "worst"), [("dedicated", 1e-9), ("colocated", 0.25)])
def test_declared_sharing_of_parameter_servers_is_close_to_events(
    small: Callable[..., Scenario], placement: str, worst: float
) -> None:
    """Exact where all pushes and all pulls start together; uneven nodes of colocated servers push and pull at once."""
    errors = []
    for workers, servers, devices in itertools.product((2, 3, 8, 13), (1, 2, 3, 5), (1, 2, 4)):
        scenario = small(
            f"strategy={{kind: parameter_server, workers: {workers}, servers: {servers}, placement: {placement}}}",
            f"batch={workers}",
            "cluster.nodes=32",
            f"cluster.node.devices={devices}",
        )
        program = compile_step(scenario.strategy, job(scenario))
        together_s, reference_s = (
            np.diff(simulate(program, 3).step_ends_s())[-1] for simulate in (replay.simulate_concurrent, events.simulate)
        )
        errors.append(together_s / reference_s - 1)
    assert np.median(np.abs(errors)) < 1e-9
    assert np.abs(errors).max() < worst


def job(scenario: Scenario) -> Job:
    return Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")


def test_delays_by_sharing_count_once_along_a_path() -> None:
    """Two pairs of messages share at the same time for half a second each: all end as much later, not twice as much."""
    builder = ProgramBuilder()
    for pair in range(2):
        link = builder.resource(f"link {pair}", 1.0)
        for late_s in (0.0, 0.5):
            rank = builder.rank(f"rank {pair} {late_s}")
            sent = builder.transfer(rank, rank, 1.0, Path(late_s, 1.0, (Use(link),)), Phase.SEND, ())
            builder.wait(rank, Phase.SEND, (sent,))
    timeline = replay.simulate(builder.build(), 1)
    assert engine.longer_s(timeline).sum() == pytest.approx(2.0)
    assert engine.later_s(timeline, engine.longer_s(timeline)) == pytest.approx(0.5)
    assert events.simulate(timeline.program, 1).step_ends_s()[-1] == pytest.approx(timeline.step_ends_s()[-1] + 0.5)


@given(programs(capacity=1.0) | programs(capacity=100.0) | server_programs(), st.integers(1, 3))
def test_the_delay_bound_gives_the_same_decision_as_the_delay(program: Program, steps: int) -> None:
    assume((program.stream == MAIN_STREAM).any())
    timeline = replay.simulate(program, steps)
    ends_s = timeline.step_ends_s()
    suffices = engine.busiest_s(program) <= (1 + engine.NEGLIGIBLE) * np.diff(ends_s, prepend=0.0).max()
    is_late = engine.later_s(timeline, engine.longer_s(timeline)) > engine.NEGLIGIBLE * ends_s[-1]
    assert engine.shares_negligibly(timeline, NONE, 0) == (suffices and not is_late)


def test_no_step_is_shorter_than_a_resource_is_busy() -> None:
    """Two stages of a pipeline gather parameters over one card for 26 s of each step, in which waits hide delays of first
    order."""
    strategy = "{kind: hybrid, workers: 4, stages: 2, tensor: 4, sequence_parallel: true, microbatches: 32, order: [%s]}"
    order = "tensor, context, stages, workers"
    overrides = (
        f"strategy={strategy % order}",
        "training.zero=3",
        "training.recompute=full",
        "batch=128",
        "framework=pytorch-fsdp2",
    )
    scenario = load("llama-2-7b", ("cluster=aws-g5", *overrides))
    program = compile_step(scenario.strategy, job_of(scenario))
    busy_s = engine.busiest_s(program)
    assert replay.simulate(program, 2).step_ends_s()[0] < 0.97 * busy_s
    ends_s = engine.simulate_steady(program, 2).step_ends_s()
    assert np.diff(ends_s) >= busy_s
    assert ends_s == pytest.approx(events.simulate(program, 3).step_ends_s()[:2])
