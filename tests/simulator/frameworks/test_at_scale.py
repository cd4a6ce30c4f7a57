"""Behaviour of frameworks at scale: hosts that wait for their tensor-parallel group in pipelines over nodes, messages that
stall, and ZeRO 1 that sums whole gradients."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.predict import timed
from scaleproof.simulator.strategy.job import Costs
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions
from tests.simulator.frameworks.scenarios import scenario

EFA = "cluster=aws-p5"
WAITS = "framework={base: nanotron, pipeline_waits: {rank: 1 ms}}"
NO_WAITS = "framework={base: nanotron, pipeline_waits: {rank: 0 s}}"
STALLS = "framework={base: nanotron, message_stall: {nodes: 2, delay: 100 ms, step: 300 ms}}"
# Collectives of a block with sequence parallelism in its forward pass.
COLLECTIVES = 4


def layout(tensor: int, stages: int, workers: int = 1) -> str:
    degrees = f"tensor: {tensor}, stages: {stages}, workers: {workers}"
    return f"strategy={{kind: hybrid, {degrees}, microbatches: 8, sequence_parallel: {str(tensor > 1).lower()}}}"


def costs(*overrides: str) -> Costs:
    one = scenario(EFA, *overrides)
    plan = one.strategy.plan
    return with_collectives(plan, job_of(one)).costs(plan.microbatches)


def block_s(*overrides: str) -> float:
    """Seconds of the forward pass over a block, collectives included."""
    found = costs(*overrides)
    return float(found.forward_s[1] + found.forward_exchange_s[1])


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_a_pass_takes_at_least_as_long_as_its_host_waits(tensor: int) -> None:
    least_s = COLLECTIVES * tensor * 1e-3
    assert block_s(WAITS, layout(tensor, 2, 8 // tensor), "batch=64") == pytest.approx(least_s, rel=0.25)
    assert block_s(WAITS, layout(tensor, 2, 8 // tensor), "batch=64") >= least_s


def test_waits_are_hidden_by_longer_passes() -> None:
    large = layout(2, 2, 4), "batch=32", "model.hidden=16384", "model.sequence=4096", "model.heads=128"
    assert block_s(WAITS, *large) == pytest.approx(block_s(NO_WAITS, *large))


@pytest.mark.parametrize("where", [layout(8, 1, 2), layout(4, 2)], ids=["no pipeline", "one node"])
def test_no_host_waits_without_a_pipeline_over_nodes(where: str) -> None:
    assert block_s(WAITS, where, "batch=64") == pytest.approx(block_s(NO_WAITS, where, "batch=64"))


def test_messages_stall_from_a_number_of_nodes_on_and_only_between_nodes() -> None:
    def step_s(framework: str, *overrides: str) -> float:
        return timed(scenario(EFA, framework, "batch=64", *overrides)).step_time_s

    inside, between = layout(1, 4, 2), layout(1, 2, 8)
    assert step_s(STALLS, inside) == pytest.approx(step_s("framework=nanotron", inside))
    # two stages, of which each is ahead by one microbatch, wait for one message in each of eight, and once at the start
    assert step_s(STALLS, between) - step_s("framework=nanotron", between) == pytest.approx((8 + 1) * 0.1)
    later = "framework={base: nanotron, message_stall: {nodes: 3, delay: 100 ms}}"
    assert step_s(later, between) == pytest.approx(step_s("framework=nanotron", between))


@pytest.mark.parametrize("zero", [0, 1])
def test_a_step_of_replicas_without_a_pipeline_stalls_once(zero: int) -> None:
    def step_s(framework: str, *overrides: str) -> float:
        return timed(scenario(EFA, framework, "batch=64", f"training.zero={zero}", *overrides)).step_time_s

    replicas, one_replica, on_a_node = layout(4, 1, 4), layout(16, 1), layout(2, 1, 4)
    assert step_s(STALLS, replicas) - step_s("framework=nanotron", replicas) == pytest.approx(0.3)
    for stays in (one_replica, on_a_node):
        assert step_s(STALLS, stays) == pytest.approx(step_s("framework=nanotron", stays))


def test_whole_sums_move_twice_as_much_and_overlap_with_nothing() -> None:
    split = "framework={base: nanotron, zero_1: {sums_whole: false}}"
    wide = layout(8, 1, 8).replace("microbatches: 8", "microbatches: 1"), "training.zero=1", "batch=8"
    whole, scattered = (timed(scenario(EFA, framework, *wide)) for framework in ("framework=nanotron", split))
    parts = {one.label: one for run in (whole, scattered) for one in run.communication}
    assert parts["ZeRO all-reduce"].size_bytes == pytest.approx(parts["ZeRO reduce-scatter"].size_bytes)
    assert parts["ZeRO all-reduce"].time_s > 1.5 * parts["ZeRO reduce-scatter"].time_s
    assert parts["ZeRO all-reduce"].exposed_s == pytest.approx(parts["ZeRO all-reduce"].time_s, rel=0.05)
    assert whole.step_time_s > scattered.step_time_s


def test_broadcasts_take_time_for_each_tensor_and_rank() -> None:
    def step_s(broadcast: str, workers: int) -> float:
        framework = f"framework={{base: nanotron, zero_1: {{broadcast: {broadcast}}}}}"
        overrides = layout(8, 1, workers).replace("microbatches: 8", "microbatches: 1"), "training.zero=1", f"batch={workers}"
        return timed(scenario(EFA, framework, *overrides)).step_time_s

    tensors = sum(len(layer.tensors) for layer in job_of(scenario(EFA, layout(8, 1, 8))).layers)
    for workers in (4, 8):
        assert step_s("1 ms", workers) - step_s("0 s", workers) == pytest.approx(tensors * workers * 1e-3, rel=0.05)


@pytest.mark.parametrize("framework", [WAITS, STALLS])
def test_estimates_are_near_predictions(framework: str) -> None:
    found = every(space(scenario(EFA, framework, layout(4, 2, 4), "batch=64"), 32))
    small = np.flatnonzero((found.zero < 2) & (found.stages * found.microbatches * found.chunks < 500))
    check_against_predictions(found, np.random.default_rng(1).choice(small, 12, replace=False))
