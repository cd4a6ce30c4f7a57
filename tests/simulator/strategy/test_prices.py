"""A program at the prices of another cluster equals a new compilation for it, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step, priced
from scaleproof.simulator.strategy.scenario_job import job_of

Make = Callable[..., Scenario]

STRATEGIES = {
    "a ring": ("strategy={kind: data_parallel, workers: 8}",),
    "an algorithm": ("strategy={kind: data_parallel, workers: 8, overlap: false, algorithm: halving_doubling}",),
    "compressed": ("strategy={kind: data_parallel, workers: 8, compression: {kind: top_k, share: 0.01}}",),
    "sharded": ("strategy={kind: data_parallel, workers: 8}", "training.zero=3"),
    "unequal": ("strategy={kind: data_parallel, workers: 4, shares: [4, 8, 8, 12]}", "batch.total=32"),
    "loading": ("strategy={kind: data_parallel, workers: 4}", "input={decode: 1 ms, prefetch: 2}"),
    "a pipeline": ("strategy={kind: pipeline, stages: 6, microbatches: 6}",),
    "searched for": ("strategy={kind: pipeline, stages: 2, microbatches: 4, schedule: zb_1p}",),
    "all axes": (
        "strategy={kind: hybrid, workers: 2, stages: 2, tensor: 2, sequence_parallel: true, microbatches: 4}",
        "training.zero=1",
    ),
    "in parts": ("strategy={kind: hybrid, workers: 2, stages: 2, tensor: 2, split_sends: true, microbatches: 2}",),
    "a hybrid with servers": ("strategy={kind: hybrid, workers: 2, stages: 2, servers: 2, microbatches: 2}",),
    "servers": ("strategy={kind: parameter_server, workers: 4, servers: 2, overlap: true, bucket: 100 KiB}",),
    "asynchronous": ("strategy={kind: parameter_server, workers: 3, servers: 2, mode: asynchronous}",),
    "local steps": ("strategy={kind: local_sgd, workers: 4, period: 3, outer: nesterov}",),
    "one main worker": ("strategy={kind: gather_average, workers: 4}",),
    "on two devices": ("strategy={kind: model_parallel, stages: 2}",),
    "a straggler": ("strategy={kind: data_parallel, workers: 8}", "unevenness.stragglers=[{ranks: 3, slowdown: 1.5}]"),
}  # fmt: skip
QUANTITIES = ("device", "node.link.bandwidth", "node.link.latency", "network.bandwidth", "network.latency")


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Names of the fields in which two programs are not bitwise equal."""
    found = []
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        name = f"{at}{field.name}"
        if field.name in ("costs", "prices"):
            continue
        if isinstance(mine, np.ndarray):
            found += [] if mine.dtype == theirs.dtype and np.array_equal(mine, theirs) else [name]
        elif field.name in ("ranks", "resources", "routes") or isinstance(mine, CsrLists):
            found += differences(mine, theirs, f"{name}.")
        elif field.name == "in_passes" and mine is not None:
            found += differences(mine(), theirs(), f"{name}.")
        else:
            found += [] if mine == theirs else [name]
    return found


def compiled_and_repriced(scenario: Scenario, slowdowns: Mapping[str, float]) -> tuple[Program, Program]:
    strategy, job = scenario.strategy, job_of(scenario, unevenness=scenario.unevenness)
    other = replace(job, cluster=slowed(job.cluster, slowdowns))
    return compile_step(strategy, other), priced(strategy, other, compile_step(strategy, job))


@pytest.mark.parametrize("overrides", STRATEGIES.values(), ids=STRATEGIES)
@given(slowdowns=st.dictionaries(st.sampled_from(QUANTITIES), st.floats(0.01, 100)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
def test_a_repriced_program_equals_a_new_compilation(
    small: Make, overrides: tuple[str, ...], slowdowns: Mapping[str, float]
) -> None:
    assert differences(*compiled_and_repriced(small(*overrides), slowdowns)) == []


@pytest.mark.parametrize("network", ["rail_optimised, nodes_per_group: 2", "torus, dimensions: [2, 2, 2]"])
def test_a_repriced_program_equals_a_new_compilation_on_non_uniform_networks(small: Make, network: str) -> None:
    scenario = small("cluster.nodes=8", f"cluster.network.topology={{kind: {network}}}", *STRATEGIES["all axes"])
    assert differences(*compiled_and_repriced(scenario, {"network.bandwidth": 3.0, "device": 0.5})) == []


def test_a_schedule_that_was_searched_for_other_times_is_searched_again(small: Make) -> None:
    scenario = small(*STRATEGIES["searched for"])
    job = job_of(scenario)
    slower = replace(job, cluster=slowed(job.cluster, {"device": 2.0}))
    assert compile_step(scenario.strategy, job).at(slower) is None
