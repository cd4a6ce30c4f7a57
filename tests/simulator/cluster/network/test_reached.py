"""Rates that networks reach: named states, and TCP connections by the kind of network."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.reached import sockets, states
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario


def scenario(*overrides: str, cluster: str = "dgx-a100") -> Scenario:
    base = {"model": "gpt2-medium", "cluster": cluster, "strategy": {"kind": "data_parallel", "workers": 16}, "batch": 64}
    return load(base, overrides)


def reached_Bps(cluster: Cluster) -> float:
    network = cluster.reached().network
    assert network is not None
    return network.bandwidth_Bps


def test_an_untuned_network_is_slower_by_its_state_and_its_interval_is_that_of_the_state() -> None:
    tuned, untuned = scenario(), scenario("cluster.network.state=untuned")
    state = states()["untuned"]
    assert 1 < state.low < state.value < state.high
    assert reached_Bps(untuned.cluster) == pytest.approx(reached_Bps(tuned.cluster) / state.value)
    assert untuned.cluster.reached().transport == tuned.cluster.transport
    low, high = QUANTITIES["network.bandwidth"].slowdown_interval(untuned.cluster)
    assert low <= state.low / state.value
    assert high >= state.high / state.value
    fast, slow = predict(tuned), predict(untuned)
    assert slow.step_time_s > fast.step_time_s
    assert "cluster.network.state: untuned" in "\n".join(slow.warnings)
    assert not any("network.state" in warning for warning in fast.warnings)


def test_large_collectives_over_an_untuned_network_take_its_slowdown_longer() -> None:
    seconds = [
        collective_time("all_gather", 2**32, 16, one.cluster) for one in (scenario(), scenario("cluster.network.state=untuned"))
    ]
    assert seconds[1] / seconds[0] == pytest.approx(states()["untuned"].value, rel=0.1)


@pytest.mark.parametrize("kind", sockets())
def test_a_network_over_tcp_carries_what_its_connections_do(kind: str) -> None:
    cluster = scenario(
        f"cluster.network.sockets={kind}", "cluster.network.bandwidth=400 Gbit/s", cluster="gcp-a2-highgpu"
    ).cluster
    known = sockets()[kind]
    assert reached_Bps(cluster) == pytest.approx(min(50e9, 2 * known.connections * known.rate_Bps))
    _, high = QUANTITIES["network.bandwidth"].slowdown_interval(cluster)
    assert high < 1.3, "what is stated keeps the narrow prior"
    slower = scenario(
        f"cluster.network.sockets={kind}", "cluster.network.connection=1 Gbit/s", cluster="gcp-a2-highgpu"
    ).cluster
    assert reached_Bps(slower) == pytest.approx(min(12.5e9, 2 * known.connections * 125e6))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("cluster.network.state=poor", "no state is called 'poor'; give one of untuned"),
        ("cluster.network.sockets=many", "no sockets are called 'many'; give one of ena,"),
        ("cluster.node.link.state=untuned", "links inside a node have none; give network.state"),
    ],
)
def test_unknown_names_and_places_are_refused(override: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        scenario(override)
