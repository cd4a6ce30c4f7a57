"""A refilled template equals a new compilation, whatever the cluster's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.batched_numbers import BatchedPoints
from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step, program_template
from scaleproof.simulator.strategy.compile import record
from scaleproof.simulator.strategy.pipeline.stage_partition import stage_layers
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of

Make = Callable[..., Scenario]

STRATEGIES = {
    "a ring": ("strategy={kind: data_parallel, workers: 8}",),
    "an algorithm": ("strategy={kind: data_parallel, workers: 8, overlap: false, algorithm: halving_doubling}",),
    "compressed": ("strategy={kind: data_parallel, workers: 8, compression: {kind: top_k, share: 0.01}}",),
    "sharded": ("strategy={kind: data_parallel, workers: 8}", "training.zero=3"),
    "unequal": ("strategy={kind: data_parallel, workers: 4, shares: [4, 8, 8, 12]}", "batch.total=32"),
    "a pipeline": ("strategy={kind: pipeline, stages: 6, microbatches: 6}",),
    "searched for": ("strategy={kind: pipeline, stages: 2, microbatches: 4, schedule: zb_1p}",),
    "all axes": (
        "strategy={kind: hybrid, workers: 2, stages: 2, tensor: 2, sequence_parallel: true, microbatches: 4}",
        "training.zero=1",
    ),
    "in parts": ("strategy={kind: hybrid, workers: 2, stages: 2, tensor: 2, split_sends: true, microbatches: 2}",),
    "a straggler": ("strategy={kind: data_parallel, workers: 8}", "unevenness.stragglers=[{ranks: 3, slowdown: 1.5}]"),
}  # fmt: skip
QUANTITIES = ("device", "node.link.bandwidth", "node.link.latency", "network.bandwidth", "network.latency")


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Names of the fields in which two programs are not bitwise equal."""
    found = []
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        name = f"{at}{field.name}"
        if isinstance(mine, np.ndarray):
            found += [] if mine.dtype == theirs.dtype and np.array_equal(mine, theirs) else [name]
        elif field.name in ("ranks", "resources", "routes") or isinstance(mine, CsrLists):
            found += differences(mine, theirs, f"{name}.")
        elif field.name == "in_passes":
            found += differences(mine(), theirs(), f"{name}.")
        else:
            found += [] if mine == theirs else [name]
    return found


def compiled_and_refilled(scenario: Scenario, slowdowns: Mapping[str, float]) -> tuple[Program, Program]:
    strategy, job = scenario.strategy, job_of(scenario, unevenness=scenario.unevenness)
    assert isinstance(strategy, ReplicaStrategy)
    other = replace(job, cluster=slowed(job.cluster, slowdowns))
    jobs = [with_collectives(strategy.plan, one) for one in (job, other)]
    first = record(strategy.plan, jobs[0], stage_layers(strategy, job))
    new = record(strategy.plan, jobs[1], stage_layers(strategy, job))
    return new.program, first.fill(jobs[1])


@pytest.mark.parametrize("overrides", STRATEGIES.values(), ids=STRATEGIES)
@given(slowdowns=st.dictionaries(st.sampled_from(QUANTITIES), st.floats(0.01, 100)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
def test_a_refilled_template_equals_a_new_compilation(
    small: Make, overrides: tuple[str, ...], slowdowns: Mapping[str, float]
) -> None:
    assert differences(*compiled_and_refilled(small(*overrides), slowdowns)) == []


@pytest.mark.parametrize("network", ["rail_optimised, nodes_per_group: 2", "torus, dimensions: [2, 2, 2]"])
def test_a_refilled_template_equals_a_new_compilation_on_non_uniform_networks(small: Make, network: str) -> None:
    scenario = small("cluster.nodes=8", f"cluster.network.topology={{kind: {network}}}", *STRATEGIES["all axes"])
    assert differences(*compiled_and_refilled(scenario, {"network.bandwidth": 3.0, "device": 0.5})) == []


def test_clusters_that_differ_in_numbers_share_one_compilation(small: Make) -> None:
    scenario = small(*STRATEGIES["all axes"])
    again = scenario.model_copy(update={"cluster": slowed(scenario.cluster, {"network.latency": 2.0})})
    one, other = (compile_step(each.strategy, job_of(each)) for each in (scenario, again))
    assert one.dependencies is other.dependencies
    assert one.slot is other.slot
    assert not np.array_equal(one.latency_s, other.latency_s)


def test_a_changed_batch_plan_or_model_is_compiled_again(small: Make) -> None:
    scenario = small(*STRATEGIES["all axes"])
    first = compile_step(scenario.strategy, job_of(scenario))
    for change in ("batch.total=64", "strategy.microbatches=2", "model.layers=8", "training.zero=2"):
        other = small(*STRATEGIES["all axes"], change)
        assert compile_step(other.strategy, job_of(other)).dependencies is not first.dependencies


def test_optimizer_and_recomputation_change_numbers_only(small: Make) -> None:
    scenario, other = (small(*STRATEGIES["all axes"], *more) for more in ((), ("training.recompute=full",)))
    one, two = (compile_step(each.strategy, job_of(each)) for each in (scenario, other))
    assert one.dependencies is two.dependencies
    assert two.amount.sum() > one.amount.sum()


def test_templates_of_batched_points_are_not_cached(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_template, "_TEMPLATES", cache := type(program_template._TEMPLATES)())
    scenario = small(*STRATEGIES["a pipeline"])
    assert scenario.cluster.network is not None
    varying = BatchedPoints(2).number(np.array([1e9, 2e9]))
    network = scenario.cluster.network.model_copy(update={"bandwidth_Bps": varying})
    job = replace(job_of(scenario), cluster=scenario.cluster.model_copy(update={"network": network}))
    assert compile_step(scenario.strategy, job).max_rate.ndim == 2
    assert not cache
    assert compile_step(scenario.strategy, job_of(scenario)).max_rate.ndim == 1
    assert len(cache) == 1
    assert compile_step(scenario.strategy, job).max_rate.ndim == 2


def test_the_cache_has_a_limited_size(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_template, "_TEMPLATES", cache := type(program_template._TEMPLATES)())
    for workers in range(1, 13):
        scenario = small(f"strategy={{kind: data_parallel, workers: {workers}}}", "batch={per_worker: 2}", "cluster.nodes=16")
        compile_step(scenario.strategy, job_of(scenario))
    assert [key.plan.workers for key in cache] == list(range(5, 13))


def test_layers_of_equal_models_are_the_same_objects(small: Make) -> None:
    one, other = (job_of(small(*STRATEGIES["a ring"])).layers for _ in range(2))
    assert one is other
    assert all(isinstance(layer, Layer) for layer in one)
