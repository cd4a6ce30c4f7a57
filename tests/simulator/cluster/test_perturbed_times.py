"""Noise, throttling and heavy tails: theoretical results, and equal results of both engines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator import engine
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.cluster.perturbations import Tail
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.engine import Variation, replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.cluster.test_perturbations import STRATEGIES
from tests.simulator.programs import ONLY_COMPUTE, compiled

Make = Callable[..., Scenario]
RING = "strategy={kind: data_parallel, workers: 4, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}"


def step_s(small: Make, *changes: str) -> float:
    return timed(small(RING, *ONLY_COMPUTE, *changes)).step_time_s


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_engines_give_equal_perturbed_times(small: Make, strategy: str) -> None:
    uneven = (
        "unevenness={noise: [{period: 1 ms, lasts: 100 us}, {ranks: [0], period: 0.3 ms, lasts: 20 us, phase: aligned}], "
        "throttled: [{ranks: [1], slowdown: 1.5, after: 2 ms}], tail: {share: 0.2, slowdown: 2, each: pass}, "
        "stragglers: [{ranks: [1], slowdown: 1.3}], late: [{ranks: [0], delay: 5 ms}], compute_jitter: 0.1}"
    )
    scenario = small(STRATEGIES[strategy], "batch=960", uneven)
    program = compiled(scenario)
    assert any(program.ranks.paces)
    variation = Variation(program.ranks.late_s, 0.1, 0.05, tail=scenario.unevenness.tail, seed=3, samples=2)
    for sample in range(2):
        replayed = replay.simulate(program, 3, variation, sample)
        if not engine.is_contended(replayed):
            simulated = engine.events.simulate(program, 3, variation, sample)
            np.testing.assert_allclose(replayed.end_s, simulated.end_s, rtol=1e-9)


def test_noise_lengthens_a_step_by_its_share(small: Make) -> None:
    even_s = step_s(small)
    noisy_s = step_s(small, f"unevenness={{noise: [{{period: {even_s / 100} s, lasts: {even_s / 1000} s, phase: aligned}}]}}")
    assert noisy_s == pytest.approx(even_s / 0.9, rel=2e-3)


def test_unsynchronised_rare_noise_costs_its_time_once_per_rank(small: Make) -> None:
    """Each interruption holds up all, whosever it is, and only those that come at once count once (F. Petrini et al., The case
    of the missing supercomputer performance, SC 2003)."""
    even_s = step_s(small)
    noise = f"unevenness={{noise: [{{period: {40 * even_s} s, lasts: {4 * even_s} s, phase: %s}}]}}"
    aligned_s, random_s = (step_s(small, noise % phase) for phase in ("aligned", "random"))
    # a tenth of the time is lost once, or once for each of four
    assert aligned_s == pytest.approx(even_s / 0.9, rel=1e-2)
    assert 1.15 < random_s / aligned_s <= 0.9 / 0.6 + 1e-2


def test_a_temporarily_throttled_rank_slows_all_for_that_time(small: Make) -> None:
    even_s = step_s(small)
    hot = f"{{ranks: [2], slowdown: 2, lasts: {10 * even_s} s, period: {30 * even_s} s}}"
    # steps in a period: at half the speed for a third of it
    assert step_s(small, f"unevenness={{throttled: [{hot}]}}") == pytest.approx(even_s / (2 / 3 + 1 / 3 / 2), rel=1e-2)


def test_permanent_throttling_equals_a_straggler(small: Make) -> None:
    hot = step_s(small, "unevenness={throttled: [{ranks: 1, slowdown: 1.5}]}")
    assert hot == pytest.approx(step_s(small, "unevenness={stragglers: [{ranks: 1, slowdown: 1.5}]}"), rel=1e-9)


def test_throttling_starts_and_ends_at_the_given_times(small: Make) -> None:
    even_s = step_s(small)
    hot = f"unevenness={{throttled: [{{slowdown: 3, after: {6.5 * even_s} s, lasts: {6 * even_s} s}}]}}"
    times = np.array(timed(small(RING, *ONLY_COMPUTE, hot)).step_times_s) / even_s
    assert times[:5] == pytest.approx(np.ones(5))
    assert times.max() == pytest.approx(3)
    assert times[-8:] == pytest.approx(np.ones(8))


def expected_slowest(tail: Tail, ranks: int) -> float:
    """Mean of the maximum of N factors: one plus the integral of the probability that any exceeds x."""
    above = np.concatenate([np.linspace(1, tail.slowdown, 2000), np.geomspace(tail.slowdown, 1e5, 20000)])
    chance = tail.share * np.minimum(1.0, (tail.slowdown / above) ** tail.shape)
    return 1 + float(np.trapezoid(-np.expm1(ranks * np.log1p(-chance)), above))


@pytest.mark.parametrize("workers", [1, 8, 32])
def test_synchronous_ranks_wait_for_the_longest_tail_draw(small: Make, workers: int) -> None:
    ring, tail = RING.replace("workers: 4", f"workers: {workers}"), "unevenness={tail: {share: 0.02, slowdown: 3, shape: 4}}"
    program = compiled(small(ring, *ONLY_COMPUTE, "batch={per_worker: 6}", tail))
    seconds, steps, samples = durations_s(program), 20, 200
    ends_s = []
    for given in (None, Tail(share=0.02, slowdown=3, shape=4)):
        variation = Variation(program.ranks.late_s, tail=given, seed=1, samples=samples)
        ends_s.append(np.mean([end_s.max(axis=0) for _, end_s in replay.replay(program, steps, seconds, variation)][-1]))
    expected = expected_slowest(Tail(share=0.02, slowdown=3, shape=4), workers)
    assert ends_s[1] / ends_s[0] - 1 == pytest.approx(expected - 1, rel=0.15)


def test_a_model_parallel_group_waits_for_its_slowest_rank_in_the_tail(small: Make) -> None:
    """A class of ranks that share each pass draws one sample per rank."""
    tail = Tail(share=0.05, slowdown=2, shape=4)
    program = compiled(small("strategy={kind: hybrid, workers: 1, stages: 1, tensor: 4}", "batch=4"))
    assert program.ranks.model_parallel_size.tolist() == [4]
    work = np.flatnonzero(program.kind == Kind.COMPUTE)[0]
    factors = Variation(tail=tail, seed=1, samples=10_000).factors(program, 0)[work]
    assert factors.mean() - 1 == pytest.approx(expected_slowest(tail, 4) - 1, rel=0.15)


def test_a_tail_applies_to_whole_steps_or_single_passes(small: Make) -> None:
    program = compiled(small(RING, "unevenness={tail: {share: 0.3, slowdown: 2}}"))
    work = program.kind == Kind.COMPUTE
    for each, are_equal in (("step", True), ("pass", False)):
        factors = Variation(tail=Tail(share=0.3, slowdown=2, each=each), seed=2).factors(program, 1)[:, 0]
        of_ranks = [set(factors[work & (program.rank == rank)]) for rank in range(4)]
        assert all(len(found) == 1 for found in of_ranks) == are_equal
        assert factors[work].max() > 2
        assert (factors[~work] == 1).all()


def test_the_same_seed_gives_the_same_times(small: Make) -> None:
    noise = "unevenness={{noise: [{{period: 1 ms, lasts: 200 us}}], tail: {{share: 0.1, slowdown: 2}}, seed: {}}}"
    times = [timed(small(RING, noise.format(seed), "steps=10")).step_times_s for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("noise: [{period: 1 ms, lasts: 1 ms}]", "lasts: must be shorter than period"),
        ("throttled: [{slowdown: 2, period: 1 s}]", "period: needs lasts"),
        ("throttled: [{slowdown: 2, phase: random}]", "phase: random needs an interval that recurs"),
        ("throttled: [{slowdown: 0.5}]", "slowdown"),
        ("tail: {share: 0.1, slowdown: 2, shape: 1}", "shape"),
        ("tenants: [{share: 0.1, flows: 1}]", "not both"),
        ("tenants: [{}]", "give share or flows"),
        ("tenants: [{share: 1}]", "share"),
    ],
)
def test_meaningless_perturbations_are_rejected(small: Make, given: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        small(RING, f"unevenness={{{given}}}")


def test_plans_reject_time_dependent_perturbations(small: Make) -> None:
    with pytest.raises(FieldError, match="leave noise, throttled, tail and tenants out"):
        plan(small(RING, "unevenness={tail: {share: 0.1, slowdown: 2}}"))
