"""Transfers that share a connection: where two ranks both send and then receive, gloo moves messages one after the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import events, replay
from scaleproof.simulator.engine.variation import Variation
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of

_EACH_S = 2.0


def _exchange(first_s: float, second_s: float) -> Program:
    """Two ranks that work, then send to one another for two seconds each and wait for what they get."""
    builder = ProgramBuilder()
    ranks = [builder.rank(name) for name in "ab"]
    before = [builder.compute(rank, Phase.FORWARD, work_s) for rank, work_s in zip(ranks, (first_s, second_s), strict=True)]
    path = Path(0.0, 1.0)
    sends = [builder.transfer(rank, 1 - rank, _EACH_S, path, Phase.SEND, before) for rank in ranks]
    builder.pair(np.array(sends[:1]), np.array(sends[1:]))
    for rank in ranks:
        builder.wait(rank, Phase.RECEIVE, [sends[1 - rank]])
    return builder.build()


@pytest.mark.parametrize("simulate", [replay.simulate, events.simulate])
@pytest.mark.parametrize(
    ("first_s", "second_s", "ends_s"), [(1.0, 3.0, (7.0, 5.0)), (3.0, 1.0, (5.0, 7.0)), (2.0, 2.0, (4.0, 6.0))]
)
def test_messages_of_the_later_rank_are_sent_first(
    simulate: object, first_s: float, second_s: float, ends_s: tuple[float, float]
) -> None:
    timeline = simulate(_exchange(first_s, second_s), 1)  # type: ignore[operator]
    assert timeline.end_s[0, 2:4].tolist() == pytest.approx(ends_s)


def _pipeline(stages: int, microbatches: int, **overrides: str) -> Scenario:
    named = {"schedule": "1f1b", "library": "gloo", **overrides}
    return load(
        "netlab-1f1b",
        [
            f"strategy.stages={stages}",
            f"strategy.microbatches={microbatches}",
            f"strategy.schedule={named['schedule']}",
            f"batch.total={4 * microbatches}",
            f"cluster.collectives.library={named['library']}",
            *[f"{field}={value}" for field, value in overrides.items() if "." in field],
        ],
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 4), st.integers(4, 8), st.floats(0, 0.2), st.integers(0, 100))
def test_both_engines_give_equal_times_for_pipelines_over_gloo(
    stages: int, microbatches: int, jitter: float, seed: int
) -> None:
    program = compile_step(_pipeline(stages, microbatches).strategy, job_of(_pipeline(stages, microbatches)))
    variation = Variation(compute_jitter=jitter, seed=seed)
    assert (program.partner >= 0).any()
    replayed, reference = replay.simulate(program, 3, variation), events.simulate(program, 3, variation)
    np.testing.assert_allclose(replayed.end_s, reference.end_s, rtol=1e-9)


@settings(max_examples=16, deadline=None)
@given(
    st.sampled_from(["interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs", "zb_v"]),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from(["25 Mbit/s", "100 Mbit/s", "1 Gbit/s"]),
    st.floats(0, 0.2),
)
def test_both_engines_give_equal_times_without_waiting_for_sends(
    schedule: str, stages: int, rounds: int, rate: str, jitter: float
) -> None:
    more = {"strategy.chunks": "2", "strategy.overlap_sends": "true", "model.layers": "8", "cluster.network.bandwidth": rate}
    scenario = _pipeline(stages, stages * rounds, schedule=schedule, **more)
    program, variation = compile_step(scenario.strategy, job_of(scenario)), Variation(compute_jitter=jitter, seed=1)
    assert (program.ready_after >= 0).any()
    # messages to two ranks share a link, which replay does not know of
    ample = dataclasses.replace(program.resources, capacity=100 * program.resources.capacity)
    program = dataclasses.replace(program, resources=ample)
    replayed, reference = replay.simulate(program, 3, variation), events.simulate(program, 3, variation)
    np.testing.assert_allclose(replayed.end_s, reference.end_s, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble"])
def test_torch_receive_posting_is_between_early_and_no_posting(schedule: str) -> None:
    """Its runtime gets to a receive when the sender gets to the pass that makes the message, and not before."""
    chunks = ["strategy.chunks=2", "strategy.overlap_sends=true", "model.layers=8"]
    far, gloo = (
        load("netlab-1f1b", [f"strategy.schedule={schedule}", f"cluster.collectives.library={library}", *chunks])
        for library in ("fastest", "gloo")
    )
    not_at_all = load("netlab-1f1b", [f"strategy.schedule={schedule}", "cluster.collectives.library=fastest", *chunks[::2]])
    programs = [compile_step(scenario.strategy, job_of(scenario)) for scenario in (far, gloo, not_at_all)]
    ends_s = [float(np.diff(replay.simulate(program, 3).step_ends_s())[-1]) for program in programs]
    assert ends_s[0] < ends_s[1]
    assert ends_s[1] < 1.1 * ends_s[2]
