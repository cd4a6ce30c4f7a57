"""Replay against the events engine, which is the reference, and against closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import engine
from simulator.engine import events, replay
from simulator.program import Path, Program, ProgramBuilder, Use
from simulator.run import Phase
from simulator.scenario import Scenario
from simulator.strategy.costs import Job


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


@given(programs(capacity=1e9), st.integers(1, 3))
def test_replay_equals_events_where_nothing_is_short(program: Program, steps: int) -> None:
    replayed, reference = replay.simulate(program, steps), events.simulate(program, steps)
    assert not replay.is_contended(replayed)
    assert replayed.start_s == pytest.approx(reference.start_s, rel=1e-9, abs=1e-12)
    assert replayed.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)


@given(programs(capacity=2.0), st.integers(1, 3))
def test_what_replay_calls_uncontended_equals_events(program: Program, steps: int) -> None:
    """Links are short here: either the check finds out, or the times agree."""
    replayed, reference = replay.simulate(program, steps), events.simulate(program, steps)
    if not replay.is_contended(replayed):
        assert replayed.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)
    # sharing only ever delays
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


def test_contention_is_two_at_once_and_not_one_after_the_other() -> None:
    assert replay.is_contended(replay.simulate(two_messages(1.0, second_after_first=False), 1))
    assert not replay.is_contended(replay.simulate(two_messages(1.0, second_after_first=True), 1))
    assert not replay.is_contended(replay.simulate(two_messages(2.0, second_after_first=False), 1))


def test_alike_ranks_that_share_take_longer_also_in_replay() -> None:
    builder = ProgramBuilder()
    link = builder.resource("link", 2.0)
    a = builder.rank("a", multiplicity=4)
    builder.transfer(a, a, 6.0, Path(0.0, 1.0, (Use(link, 4.0),)), Phase.SEND, ())
    timeline = replay.simulate(builder.build(), 1)
    assert timeline.end_s[0, 0] == pytest.approx(12.0)
    assert not replay.is_contended(timeline)


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


@pytest.mark.parametrize("ranks", [2, 3, 8, 33])
def test_a_ring_of_alike_ranks_takes_as_many_messages_as_it_has_steps(ranks: int) -> None:
    program = ring([0.25] * ranks)
    *_, (_, end) = replay.replay(program, 2 * (ranks - 1), replay.durations_s(program)[:, None])
    assert end == pytest.approx(2 * (ranks - 1) * 0.25)


def test_the_slowest_rank_sets_the_pace_of_a_ring() -> None:
    program = ring([0.1, 0.1, 0.7, 0.1])
    steps = 40
    *_, (_, end) = replay.replay(program, steps, replay.durations_s(program)[:, None])
    assert end.max() == pytest.approx(steps * 0.7)
    assert events.simulate(program, steps).end_s[-1].max() == pytest.approx(end.max(), rel=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_samples_are_replayed_as_if_each_were_alone(seed: int) -> None:
    generator = np.random.default_rng(seed)
    program = ring([0.1, 0.2, 0.3])
    seconds = generator.uniform(0.1, 1.0, (3, 5))
    starts_s = generator.uniform(0.0, 2.0, (3, 5))
    together = [end for _, end in replay.replay(program, 6, seconds, starts_s)]
    for sample in range(5):
        alone = [end for _, end in replay.replay(program, 6, seconds[:, [sample]], starts_s[:, [sample]])]
        for step, end in enumerate(alone):
            assert (end[:, 0] == together[step][:, sample]).all()


def test_a_late_rank_delays_those_that_follow_it() -> None:
    program = ring([1.0, 1.0, 1.0])
    ends = [end for _, end in replay.replay(program, 3, np.ones((3, 1)), np.array([0.0, 5.0, 0.0]))]
    assert ends[0][:, 0].tolist() == [1, 6, 1]
    assert ends[1][:, 0].tolist() == [2, 7, 7]
    assert ends[2][:, 0].tolist() == [8, 8, 8]


def test_what_follows_nothing_begins_at_zero_in_every_step() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("a")
    builder.transfer(rank, rank, 2.0, Path(1.0, 1.0), Phase.SEND, ())
    timeline = replay.simulate(builder.build(), 3)
    assert timeline.start_s.tolist() == [[0], [0], [0]]
    assert timeline.end_s.tolist() == [[3], [3], [3]]


def test_servers_and_circles_are_refused() -> None:
    builder = ProgramBuilder()
    server = builder.rank("server", is_server=True)
    builder.serve(server, server, Phase.OPTIMIZER, 1, 1.0, 1.0, ())
    with pytest.raises(ValueError, match="needs the events engine"):
        replay.simulate(builder.build(), 1)
    circle = ProgramBuilder()
    rank = circle.rank("a")
    circle.compute(rank, Phase.FORWARD, 1.0, (1,))
    circle.compute(rank, Phase.FORWARD, 1.0)
    with pytest.raises(ValueError, match="in a circle"):
        replay.simulate(circle.build(), 1)


@pytest.mark.parametrize(
    "strategy",
    [
        "{kind: ring_allreduce, workers: 12, bucket: 100 KiB, first_bucket: 10 KiB}",
        "{kind: pipeline, stages: 6, microbatches: 12, schedule: gpipe}",
        "{kind: hybrid, workers: 4, stages: 3, microbatches: 6}",
        "{kind: parameter_server, workers: 12, servers: 3}",
    ],
)
def test_whichever_engine_is_chosen_gives_the_reference(small: Callable[..., Scenario], strategy: str) -> None:
    scenario = small(f"strategy={strategy}")
    job = Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")
    program = scenario.strategy.compile(job)
    reference = events.simulate(program, 3)
    assert engine.simulate(program, 3).end_s == pytest.approx(reference.end_s, rel=1e-9)
