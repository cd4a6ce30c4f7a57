"""Server configurations are valid scenarios, with the step times and the memory of predictions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate.parameter_servers import (
    ServerConfigurations,
    ServerSpace,
    valid_server_configurations,
)
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

NAME = "resnet50-servers-p100"
# Models, clusters and how tensors are spread: 25 Gbit/s and PCIe, InfiniBand and NVLink, two nodes, one.
SCENARIOS = {
    "after the pass": ("batch=512",),
    "during the pass": ("batch=512", "strategy.overlap=true"),
    "vgg16 on a100": ("batch=512", "model=vgg16", "cluster=a100-64", "strategy.overlap=true"),
    "bert on a100": ("batch=512", "model=bert-base", "cluster=a100-64", "training.optimizer=adam", "strategy.overlap=true"),
    "gpt on p100": ("batch=512", "model=gpt3-125m", "training.optimizer=adam"),
    "whole tensors": ("batch=512", "model=alexnet", "strategy.shard=tensor"),
}


@lru_cache
def scenario(*overrides: str) -> Scenario:
    return load(NAME, overrides)


@lru_cache
def found(name: str) -> ServerConfigurations:
    recompute = tuple(Recompute(kind=kind) for kind in ("none", "selective", "full"))
    space = ServerSpace(
        scenario(*SCENARIOS[name]), (4, 8, 16), tuple(range(1, 17)), recompute=recompute, buckets_bytes=(25e6, 1e8)
    )
    return valid_server_configurations(space)


def drawn(name: str, count: int, seed: int) -> ServerConfigurations:
    return found(name).take(np.random.default_rng(seed).choice(len(found(name)), count, replace=False))


@pytest.mark.parametrize("name", SCENARIOS)
def test_step_times_are_predicted(name: str) -> None:
    some = drawn(name, 6, seed=1)
    times = some.step_times()
    assert times.expected_s.tolist() == [timed(some.scenario(row)).step_time_s for row in range(6)]
    assert (times.least_s <= times.expected_s).all()


@pytest.mark.parametrize("name", SCENARIOS)
def test_memory_of_many_configurations_equals_separate_results(name: str) -> None:
    some = drawn(name, 5, seed=3)
    reported = [memory(some.scenario(row)).worst.total_bytes for row in range(len(some))]
    assert some.memory_bytes() == pytest.approx(reported, rel=1e-9)


def test_impossible_configurations_are_left_out() -> None:
    base = scenario(*SCENARIOS["after the pass"], "cluster.nodes=3", "strategy.workers=8", "strategy.servers=1")
    space = ServerSpace(base, (3, 8), (1, 2), recompute=(Recompute(kind="selective"), Recompute(kind="full")))
    every = valid_server_configurations(space)
    rows = [every.row(row) for row in range(len(every))]
    # three workers divide no batch, two dedicated servers have no machines, and there are no scores to make again
    assert {(row["workers"], row["servers"], row["placement"]) for row in rows} == {
        (8, 1, "dedicated"), (8, 1, "colocated"), (8, 2, "colocated")
    }  # fmt: skip
    assert {row["recompute"] for row in rows} == {"full"}


def test_whole_tensors_use_no_more_servers_than_there_are_tensors() -> None:
    base = scenario("batch=8", "model=mlp-mini", "strategy.workers=8", "strategy.shard=tensor", "strategy.servers=1")
    tensors = sum(len(layer.tensors) for layer in base.model.build_layers())
    every = valid_server_configurations(ServerSpace(base, (8,), (1, tensors, tensors + 1)))
    assert max(one.servers for one in every.choices) == min(tensors, 16)


def test_single_machines_have_colocated_servers_only() -> None:
    rows = valid_server_configurations(
        ServerSpace(scenario("batch=64", "cluster.nodes=2", "strategy.workers=4", "strategy.servers=1"), (4,), (1, 2))
    )
    assert {rows.row(row)["placement"] for row in range(len(rows))} == {"dedicated", "colocated"}
    alone = scenario("batch=64", "cluster.nodes=1", "strategy.workers=4", "strategy.placement=colocated")
    rows = valid_server_configurations(ServerSpace(alone, (4,), (1, 2)))
    assert {rows.row(row)["placement"] for row in range(len(rows))} == {"colocated"}
