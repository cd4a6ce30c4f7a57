"""Stragglers, late starts and jitter: affected ranks are unfolded, others keep their times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.parallelism.mesh import place
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of

Make = Callable[..., Scenario]
STRATEGIES = {
    "ring": "strategy={kind: data_parallel, workers: 10}",
    "ring over two nodes": "strategy={kind: data_parallel, workers: 8, overlap: false}",
    "servers": "strategy={kind: parameter_server, workers: 10, servers: 3}",
    "colocated servers": "strategy={kind: parameter_server, workers: 12, servers: 3, placement: colocated}",
    "pipeline": "strategy={kind: pipeline, stages: 3, microbatches: 6}",
    "hybrid": "strategy={kind: hybrid, workers: 8, stages: 2, microbatches: 4}",
}
EVERYONE = "unevenness={{stragglers: [{{ranks: {ranks}, slowdown: {slowdown}}}]}}"


def with_slowdown(scenario: Scenario, slowdown: float) -> str:
    return EVERYONE.format(ranks=list(range(scenario.strategy.ranks)), slowdown=slowdown)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_unfolding_a_folded_program_does_not_change_times(small: Make, strategy: str) -> None:
    """Ranks that are named form separate classes, even if they are as fast as the others."""
    folded = small(STRATEGIES[strategy], "batch=960")
    unfolded = small(STRATEGIES[strategy], "batch=960", with_slowdown(folded, 1.0))
    classes = [
        len(compile_step(s.strategy, job_of(s, s.samples_per_worker, s.unevenness)).ranks.names) for s in (folded, unfolded)
    ]
    assert classes[1] == folded.strategy.ranks >= classes[0]
    one, other = predict(folded), predict(unfolded)
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-9)
    for cause, seconds in one.breakdown_s.items():
        assert other.breakdown_s[cause] == pytest.approx(seconds, rel=1e-6, abs=1e-9 * one.step_time_s)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_straggler_delays_all_by_at_most_its_own_delay(small: Make, strategy: str) -> None:
    even = small(STRATEGIES[strategy], "batch=960")
    uneven = small(STRATEGIES[strategy], "batch=960", EVERYONE.format(ranks=[1], slowdown=2))
    all_slow = small(STRATEGIES[strategy], "batch=960", with_slowdown(even, 2))
    times = [predict(scenario).step_time_s for scenario in (even, uneven, all_slow)]
    # servers on the workers' nodes that are done early answer while the straggler pushes, over the same card
    margin = 0.05 if "colocated" in strategy else 1e-9
    assert times[0] < times[1] <= times[2] * (1 + margin)


def test_a_data_parallel_step_without_overlap_waits_for_the_slowest(small: Make) -> None:
    ring = "strategy={kind: data_parallel, workers: 8, overlap: false}"
    even, uneven = predict(small(ring)), predict(small(ring, EVERYONE.format(ranks=[5], slowdown=1.5)))
    compute_s = even.breakdown_s["compute"]
    assert uneven.step_time_s - even.step_time_s == pytest.approx(0.5 * compute_s, rel=1e-9)
    # seven of eight ranks wait
    assert uneven.breakdown_s["waiting_for_ranks"] == pytest.approx(7 / 8 * 0.5 * compute_s, rel=1e-6)
    assert even.efficiency
    assert uneven.efficiency
    assert uneven.efficiency["weak"] == pytest.approx(even.efficiency["weak"] * even.step_time_s / uneven.step_time_s)


def test_only_perturbed_ranks_are_unfolded() -> None:
    assert [(p.node, p.nodes, p.each, p.rank) for p in place(10, 4, ())] == [(0, 2, 4, 0), (2, 1, 2, 8)]
    assert [(p.node, p.nodes, p.each, p.rank) for p in place(12, 4, {5})] == [(0, 2, 4, 0), (1, 1, 3, 4), (1, 1, 1, 5)]
    assert [(p.node, p.nodes, p.each, p.rank) for p in place(8, 4, {0})] == [(0, 1, 1, 0), (0, 1, 3, 1), (1, 1, 4, 4)]
    assert sum(p.ranks for p in place(1003, 8, range(17, 40))) == 1003


def test_jitter_costs_more_the_more_ranks_wait_for_one_another(small: Make) -> None:
    """The expected maximum of more draws is larger."""
    jitter = "unevenness={compute_jitter: 0.2, seed: 1}"
    excess = []
    for workers in (2, 8, 32):
        ring = f"strategy={{kind: data_parallel, workers: {workers}, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}}"
        even, uneven = (predict(small(ring, "batch={per_worker: 6}", "steps=100", *more)) for more in ((), (jitter,)))
        excess.append((uneven.step_time_s - even.step_time_s) / even.breakdown_s["compute"])
    assert 0 < excess[0] < excess[1] < excess[2]


def test_unknown_ranks_are_rejected_with_their_place(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"unevenness\.stragglers\.0\.ranks: there is no rank 4"):
        small("strategy={kind: data_parallel, workers: 4}", EVERYONE.format(ranks=[4], slowdown=2))


def test_slowdowns_multiply_and_delays_add() -> None:
    uneven = Perturbations.model_validate(
        {
            "stragglers": [{"ranks": [1, 2], "slowdown": 2}, {"ranks": [2], "slowdown": 3}],
            "late": [{"ranks": [2], "delay": "1 s"}, {"ranks": [2], "delay": "2 s"}],
        }
    )
    assert [uneven.slowdown(rank) for rank in range(3)] == [1, 2, 6]
    assert uneven.late_s(2) == 3
    assert uneven.named == {1, 2}
