"""Statistics of servers, compared with counting at every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.parameter_server import Asp, Bsp, ConsistencyModel, Ssp, WorkQuota
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import Timeline, simulate
from scaleproof.simulator.engine.variation import Variation
from scaleproof.simulator.predict import predicted_run
from scaleproof.simulator.prediction.staleness import summary, window_of
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.run.records import ServerStatistics

consistencies = st.sampled_from([Bsp(), Bsp(1), Ssp(0), Ssp(2), Asp()])


def program(work_s: list[float], consistency: ConsistencyModel, units: WorkQuota | None = None, requests: int = 1) -> Program:
    """Workers that compute for the given time, push for 0.1 s, are served for 0.2 s each, and continue at the reply."""
    builder = ProgramBuilder(consistency, units)
    server = builder.rank("server", is_server=True)
    for number, seconds in enumerate(work_s):
        rank = builder.rank(f"worker {number}", multiplicity=requests)
        work = builder.compute(rank, Phase.FORWARD, seconds)
        push = builder.transfer(rank, server, 1.0, Path(0.0, 10.0), Phase.SEND, (work,))
        served = builder.serve(server, rank, Phase.OPTIMIZER, requests, 0.2, 0.3 * isinstance(consistency, Bsp), (push,))
        builder.wait(rank, Phase.WAIT, (served,))
    return builder.build()


def reported(timeline: Timeline) -> ServerStatistics:
    result = summary([timeline])
    assert result is not None
    return result


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 3.0), min_size=3, max_size=6), consistencies, st.integers(0, 99))
def test_queue_lengths_equal_a_count_at_every_instant(work_s: list[float], consistency: ConsistencyModel, seed: int) -> None:
    timeline = simulate(program(work_s, consistency), 8, Variation(compute_jitter=0.3, seed=seed))
    window = window_of(timeline)
    arrived_s, began_s = timeline.end_s[:, 1::4].ravel(), timeline.start_s[:, 2::4].ravel()
    instants_s = np.sort(np.concatenate([arrived_s, began_s, [window.begin_s, window.end_s]]))
    instants_s = instants_s[(instants_s >= window.begin_s) & (instants_s <= window.end_s)]
    middle_s = (instants_s[1:] + instants_s[:-1]) / 2
    waiting = ((arrived_s[:, None] <= middle_s) & (middle_s < began_s[:, None])).sum(axis=0)
    found = reported(timeline).queue_length
    assert found.mean == pytest.approx((waiting * np.diff(instants_s)).sum() / window.length_s, abs=1e-9)
    assert found.max == max(waiting[np.diff(instants_s) > 1e-9], default=0)


def test_folded_requests_wait_for_one_another() -> None:
    """Of four that come together three wait, for two tenths, four tenths and six."""
    timeline = simulate(program([1.0], Bsp(), requests=4), 3)
    step_s = 1 + 0.1 + 4 * 0.2 + 0.3
    assert np.diff(timeline.step_ends_s()) == pytest.approx(step_s)
    assert reported(timeline).queue_length.mean == pytest.approx(1.2 / step_s)
    assert reported(timeline).queue_length.max == 3
    assert reported(timeline).utilisation.max == pytest.approx(1.1 / step_s)


def test_percentiles_are_over_all_counted_updates() -> None:
    timeline = simulate(program([1.0, 1.0, 10.0], Asp()), 40)
    gap = reported(timeline).clock_gap
    values = np.repeat(*np.array([(int(value), count) for value, count in gap.histogram.items()]).T)
    assert gap.mean == pytest.approx(values.mean())
    assert (gap.p50, gap.p95) == tuple(np.percentile(values, [50, 95], method="inverted_cdf"))
    assert gap.max == values.max() > 10


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 3.0), min_size=3, max_size=6), consistencies)
def test_breakdown_adds_up_and_only_applied_samples_count(work_s: list[float], consistency: ConsistencyModel) -> None:
    timeline = simulate(program(work_s, consistency), 9)
    run = predicted_run(timeline, scenario="", strategy="", samples=7 * len(work_s))
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    backups = consistency.backups if isinstance(consistency, Bsp) else 0
    assert run.samples == 7 * (len(work_s) - backups)
    assert run.ranks == len(work_s) + 1
    per_step = 1 if isinstance(consistency, Bsp) else len(work_s)
    assert reported(timeline).updates_per_s == pytest.approx(per_step / run.step_time_s)
    assert run.servers == reported(timeline)


@pytest.mark.parametrize("consistency", [Ssp(0), Bsp()])
def test_synchronous_models_take_the_time_of_the_slowest_worker(consistency: ConsistencyModel) -> None:
    timeline = simulate(program([1.0, 2.0, 4.0], consistency), 12)
    update_s = 0.3 * isinstance(consistency, Bsp)
    run = predicted_run(timeline, scenario="", strategy="", samples=3)
    assert run.step_time_s == pytest.approx(4.0 + 0.1 + 0.2 + update_s)


def test_a_run_of_work_units_covers_its_whole_duration() -> None:
    timeline = simulate(program([1.0, 3.0], Asp(), WorkQuota(4, shared=False)), 1)
    run = predicted_run(timeline, scenario="", strategy="", samples=2)
    assert window_of(timeline) == pytest.approx((0.0, 2 * 3.3, 2.0))
    assert run.step_time_s == pytest.approx(3.3)
    # the fast one has ended after 2.6 of 6.6 seconds
    assert run.breakdown_s["waiting_for_ranks"] == pytest.approx((6.6 - 2.6) / 2 / 2)
