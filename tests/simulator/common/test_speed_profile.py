"""Speed profiles compared with step-by-step integration, and equal results of both engines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator import engine
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.speed_profile import Cycle, Pace, SpeedProfiles
from scaleproof.simulator.engine import Variation, events, is_contended, replay
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Use

times = st.floats(0.0, 50.0)


@st.composite
def cycles(draw: st.DrawFn) -> Cycle:
    """Recurring cycles, single ones, and unlimited ones."""
    speed = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    if draw(st.booleans()):
        period_s = draw(st.floats(0.5, 20.0))
        return Cycle(period_s, period_s * draw(st.floats(0.05, 0.6)), draw(times), speed)
    lasts_s = math.inf if speed else 5.0
    return Cycle(math.inf, draw(st.sampled_from([1.0, lasts_s])), draw(times), speed)


paces = st.lists(cycles(), max_size=2).map(tuple)


def stretches(cycle: Cycle, begin_s: float) -> Iterator[tuple[float, float]]:
    """Speeds from a time on, each with its end."""
    if math.isinf(cycle.period_s):
        yield cycle.begins_s, 1.0
        yield cycle.begins_s + cycle.lasts_s, cycle.speed
        yield math.inf, 1.0
        return
    for period in itertools.count(math.floor((begin_s - cycle.begins_s) / cycle.period_s) - 1):
        at_s = cycle.begins_s + period * cycle.period_s
        yield at_s + cycle.lasts_s, cycle.speed
        yield at_s + cycle.period_s, 1.0


def integrated_end_s(cycle: Cycle, begin_s: float, work_s: float) -> float:
    """End of work that starts at a given time, by integration over intervals of constant speed."""
    now_s = begin_s
    for until_s, speed in stretches(cycle, begin_s):
        if until_s > now_s:
            if work_s <= speed * (until_s - now_s):
                return now_s + work_s / speed
            work_s -= speed * (until_s - now_s)
            now_s = until_s
    raise AssertionError("it never ends")


def done_s(cycle: Cycle, time_s: float) -> float:
    """Work done until a time, equal to the time when the cycle first begins."""
    low_s, high_s = sorted((cycle.begins_s, time_s))
    now_s, total_s = low_s, 0.0
    for until_s, speed in stretches(cycle, low_s):
        if until_s > now_s:
            total_s += speed * (min(until_s, high_s) - now_s)
            now_s = until_s
        if now_s >= high_s:
            break
    return cycle.begins_s + math.copysign(total_s, time_s - cycle.begins_s)


def ends_s(pace: Pace, begin_s: float, work_s: float) -> float:
    """Work done under several cycles: the clock of inner cycles is the work that outer ones let through."""
    if not pace:
        return begin_s + work_s
    outer, *inner = pace
    clock_s = done_s(outer, begin_s)
    return integrated_end_s(outer, begin_s, ends_s(tuple(inner), clock_s, work_s) - clock_s)


@given(paces, times, st.floats(1e-3, 50.0))
def test_end_of_work_equals_stepwise_integration(pace: Pace, begin_s: float, work_s: float) -> None:
    assert begin_s + SpeedProfiles([[pace]]).lasts_s(begin_s, work_s) == pytest.approx(ends_s(pace, begin_s, work_s), rel=1e-9)


@given(st.lists(st.lists(paces, min_size=1, max_size=3), min_size=1, max_size=4), times, st.floats(1e-3, 50.0))
def test_a_group_waits_for_its_last_rank_with_separate_profiles(
    of_tasks: list[list[Pace]], begin_s: float, work_s: float
) -> None:
    shape = len(of_tasks), 2
    found = SpeedProfiles(of_tasks).end_s(np.full(shape, begin_s), np.full(shape, work_s))
    for row, of_task in zip(found, of_tasks, strict=True):
        alone = [begin_s + SpeedProfiles([[pace]]).lasts_s(begin_s, work_s) for pace in of_task]
        assert row == pytest.approx([max(alone)] * 2, rel=1e-9)


@given(paces, times, st.floats(1e-3, 20.0), st.floats(1e-3, 20.0))
def test_a_pass_split_in_two_ends_at_the_same_time(pace: Pace, begin_s: float, first_s: float, second_s: float) -> None:
    pacing = SpeedProfiles([[pace]])
    middle_s = begin_s + pacing.lasts_s(begin_s, first_s)
    whole_s = begin_s + pacing.lasts_s(begin_s, first_s + second_s)
    assert middle_s + pacing.lasts_s(middle_s, second_s) == pytest.approx(whole_s, rel=1e-9)


def test_work_that_ends_when_noise_begins_does_not_wait() -> None:
    pacing = SpeedProfiles([[(Cycle(0.01, 0.001, 0.0, 0.0),)]])
    begin_s = 0.0
    for _ in range(1000):
        # nine of ten milliseconds are its own
        end_s = begin_s + pacing.lasts_s(begin_s, 0.009)
        assert end_s - begin_s == pytest.approx(0.01, rel=1e-6)
        begin_s = end_s


def test_zero_work_during_noise_takes_no_time() -> None:
    assert SpeedProfiles([[(Cycle(1.0, 0.5, 0.0, 0.0),)]]).lasts_s(0.25, 0.0) == 0


@st.composite
def perturbed_programs(draw: st.DrawFn) -> Program:
    """Ranks with different speed profiles that compute, send and are served; no contention, no simultaneous requests."""
    builder = ProgramBuilder()
    work_s = st.floats(1e-3, 10.0)
    of_rank = st.lists(paces, max_size=2).map(lambda found: tuple(found) if any(found) else ())
    # servers belong to no model-parallel group
    of_server = paces.map(lambda pace: (pace,) if pace else ())
    servers = [builder.rank(f"server {i}", is_server=True, paces=draw(of_server)) for i in range(draw(st.integers(0, 2)))]
    ranks = [builder.rank(f"rank {i}", paces=draw(of_rank)) for i in range(draw(st.integers(1, 4)))]
    waits = []
    for number, rank in enumerate(ranks):
        work = [builder.compute(rank, Phase.FORWARD, draw(work_s)) for _ in range(draw(st.integers(1, 3)))]
        times_s = np.array([draw(work_s)]), draw(work_s)
        rows = builder.compute(np.full(1, rank), Phase.BACKWARD, lambda _, times_s=times_s: times_s, [np.array([work[-1]])])
        served = []
        for server in servers:
            path = Path(draw(work_s) + len(served) / 7 + number / 97, 1.0)
            sent = builder.transfer(rank, server, draw(work_s), path, Phase.SEND, rows.tolist())
            served.append(builder.serve(server, rank, Phase.OPTIMIZER, draw(st.integers(1, 2)), draw(work_s), 1.0, (sent,)))
        waits.append(builder.wait(rank, Phase.WAIT, served))
    if len(ranks) > 1:
        builder.collective(ranks, 1.0, Path(0.1, 1.0), Phase.SYNCHRONISE, waits)
    return builder.build()


@given(perturbed_programs(), st.sampled_from([0.0, 0.3]))
def test_both_engines_apply_equal_speed_profiles(program: Program, jitter: float) -> None:
    variation = Variation(compute_jitter=jitter, seed=1, samples=2)
    try:
        replayed = [replay.simulate(program, 3, variation, sample) for sample in range(2)]
    except ValueError:
        # a request overtook one of the step before, which replay does not follow
        return
    for sample, timeline in enumerate(replayed):
        simulated = events.simulate(program, 3, variation, sample)
        np.testing.assert_allclose(timeline.start_s, simulated.start_s, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(timeline.end_s, simulated.end_s, rtol=1e-9, atol=1e-9)
        for rank, stretches in timeline.server_busy.items():
            pairs = [[(one.start_s, one.end_s) for one in each] for each in (stretches, simulated.server_busy[rank])]
            np.testing.assert_allclose(*pairs, rtol=1e-9)


def test_noise_of_a_rank_delays_ranks_on_shared_cores() -> None:
    """Two ranks on one core: the noise of either is work of the core."""
    builder = ProgramBuilder()
    core = builder.resource("core", 1.0)
    for number in range(2):
        rank = builder.rank(f"rank {number}", uses=(Use(core),), paces=((Cycle(1.0, 0.5, 0.0, 0.0),),))
        builder.compute(rank, Phase.FORWARD, 10.0)
    program = builder.build()
    assert is_contended(replay.simulate(program, 1))
    assert engine.simulate(program, 1).end_s.max() == pytest.approx(2 * 20.0)
