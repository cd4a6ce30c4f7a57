"""TensorFlow 2: one process drives the devices of a node, and sums of gradients go over TCP. Connections in containers."""

from __future__ import annotations

import pytest

from scaleproof.simulator.cluster.network.reached import sockets
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.frameworks.scenarios import scenario, trained_by

TENSORFLOW = shipped("tensorflow-2-mirrored")


def on(gpus: int) -> Scenario:
    return scenario(
        "framework=tensorflow-2-mirrored", "cluster=dlperf-v100", f"strategy.workers={gpus}", f"batch={8 * gpus}",
        "training.precision=fp16",
    )  # fmt: skip


def host_s(one: Scenario) -> float:
    """Seconds by which the host's work on gradients makes a step longer."""
    framework = one.framework.model_copy(update={"host": one.framework.host.model_copy(update={"gradient_s": 0.0})})
    return timed(one).step_time_s - timed(trained_by(one, framework)).step_time_s


def test_the_hosts_work_on_gradients_grows_with_the_devices_of_a_node() -> None:
    one = on(1)
    tensors = sum(len(layer.tensors) for layer in job_of(one).layers)
    assert host_s(one) == pytest.approx(0.0, abs=1e-9)
    for gpus, driven in ((2, 2), (8, 8), (16, 8), (32, 8)):
        assert host_s(on(gpus)) == pytest.approx(TENSORFLOW.host.gradient_s * tensors * driven)


def test_collectives_over_tcp_are_slower_between_nodes_only() -> None:
    inside, between = on(8), on(16)
    assert timed(trained_by(inside, TENSORFLOW.ablated("tcp"))).step_time_s == pytest.approx(timed(inside).step_time_s)
    assert timed(trained_by(between, TENSORFLOW.ablated("tcp"))).step_time_s < timed(between).step_time_s


def test_tcp_is_not_faster_than_the_network() -> None:
    cluster = on(16).cluster
    assert cluster.network is not None
    slow = cluster.model_copy(update={"network": cluster.network.model_copy(update={"bandwidth_Bps": 1e9})})
    reached = TENSORFLOW.reached(slow).network
    assert reached is not None
    assert (reached.bandwidth_Bps, reached.transport) == (1e9, "sockets")
    alone = cluster.model_copy(update={"network": None})
    assert TENSORFLOW.reached(alone) is alone
    assert shipped("pytorch-ddp").reached(cluster) is cluster


def test_connections_limit_collectives_over_tcp_where_the_network_limits_each() -> None:
    pods = shipped("adaptdl")
    cluster = scenario("cluster=aws-g4dn", "strategy.workers=8", "training.precision=fp16").cluster
    limited, several = (pods.model_copy(update={"connections": number}).reached(cluster).network for number in (1, 3))
    assert cluster.network is not None
    assert limited is not None
    assert several is not None
    assert (limited.bandwidth_Bps, several.bandwidth_Bps) == (cluster.network.connection_Bps, 3 * limited.bandwidth_Bps)
    enough = pods.model_copy(update={"connections": 100})
    assert enough.reached(cluster) is cluster
    free = cluster.model_copy(update={"network": cluster.network.model_copy(update={"connection_Bps": None, "sockets": None})})
    by_core = pods.reached(free).network
    assert by_core is not None
    assert by_core.bandwidth_Bps == sockets()["default"].rate_Bps
    over_rdma = cluster.model_copy(update={"network": cluster.network.model_copy(update={"transport": "roce"})})
    assert pods.reached(over_rdma) is over_rdma
