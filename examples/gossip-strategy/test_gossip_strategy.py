"""Gossip against what theory says of it: how many bytes move, that they do not become more, and what hides them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

SCENARIO = Path(__file__).with_name("gossip.yaml")


def run(*overrides: str) -> Run:
    return predict(load(SCENARIO, overrides))


def size_bytes(scenario: Scenario) -> float:
    """Of a worker's parameters."""
    job = job_of(scenario)
    return float(sum(layer.parameters for layer in job.layers) * job.element_bytes)


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_a_worker_sends_its_parameters_to_two_neighbours_however_many_workers_there_are(workers: int) -> None:
    scenario = load(SCENARIO, [f"strategy.workers={workers}", "cluster.network.bandwidth=1 Gbit/s"])
    network = scenario.cluster.network
    assert network is not None
    moving_s = network.latency_s + min(2, workers - 1) * size_bytes(scenario) / network.bandwidth_Bps
    found = predict(scenario)
    assert found.phase_s["forward"] + found.phase_s["backward"] < moving_s  # or else nothing would be seen of it
    assert found.step_time_s == pytest.approx(moving_s + found.phase_s["optimizer"])


def test_messages_hide_behind_the_passes_where_the_network_is_fast() -> None:
    found = run("cluster.network.bandwidth=100 Gbit/s")
    assert found.breakdown_s["exposed_communication"] == 0.0
    assert found.communication_s["hidden"] > 0.0


def test_one_worker_alone_sends_nothing() -> None:
    assert run("strategy.workers=1").communication_s == {"exposed": 0.0, "hidden": 0.0}


def test_a_slow_worker_holds_up_its_neighbours_and_in_the_end_all() -> None:
    slow = run("unevenness={stragglers: [{ranks: [3], slowdown: 2.0}]}", "cluster.network.bandwidth=100 Gbit/s")
    even = run("cluster.network.bandwidth=100 Gbit/s")
    assert even.step_time_s < slow.step_time_s <= 2 * even.step_time_s


def test_latency_counts_once_where_a_ring_allreduce_passes_it_round() -> None:
    high = "cluster.network.latency=20 ms"
    gossip = run(high).step_time_s - run().step_time_s
    ring = "strategy={kind: data_parallel, workers: 16, algorithm: ring}"
    assert gossip < (run(ring, high).step_time_s - run(ring).step_time_s) / 10
