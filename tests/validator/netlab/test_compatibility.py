"""Scenarios that a lab on this machine cannot emulate are rejected or give a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scaleproof
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.netlab import compatibility
from tests.validator.conftest import CLUSTER, TINY_GPT
from tests.validator.netlabs import needs_netlab

SHIPPED = sorted(path.stem for path in (Path(__file__).parents[3] / "scenarios/netlab").glob("*.yaml"))
SLOW = {"bandwidth": "50 Mbit/s", "latency": "100 us"}
FAST = {"bandwidth": "10 GB/s", "latency": "5 us"}


def scenario(workers: int = 4, devices: int = 2, link: Any = FAST, network: Any = SLOW, nodes: int = 2) -> Scenario:
    cluster = CLUSTER | {"nodes": nodes, "network": network, "node": {"devices": devices, "cores": 2, "link": link}}
    strategy = {"kind": "data_parallel", "workers": workers}
    plain = {"name": "lab", "model": TINY_GPT, "cluster": cluster, "strategy": strategy, "batch": {"total": 32}, "steps": 2}
    return Scenario.model_validate(plain)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_lab_scenarios_run_on_two_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_CORES", 2)
    compatibility.check(scaleproof.load(name))


def test_ranks_of_one_host_communicate_without_a_limit() -> None:
    assert compatibility.warning(scenario()) == (
        "cluster.node.link is not limited: ranks of one host talk over its loopback; "
        "give each rank a host of its own (cluster.node.devices: 1) to measure links that are"
    )
    assert compatibility.provenance(scenario()) == {"inside a host": "loopback, not limited"}


def test_ranks_on_separate_hosts_have_no_node_link() -> None:
    one = scenario(workers=2, devices=1)
    assert (compatibility.warning(one), compatibility.provenance(one)) == ("", {})


def test_node_links_slower_than_the_network_are_rejected() -> None:
    with pytest.raises(InputError) as error:
        compatibility.check(scenario(link={"bandwidth": "20 Mbit/s", "latency": "5 us"}))
    assert str(error.value) == (
        "lab: cluster.node.link: netlab does not limit it, and with 20.0 Mbit/s it is slower than the network's 50.0 Mbit/s; "
        "make it faster than that, or give each rank a node of its own"
    )


def test_links_too_fast_for_this_machine_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_CORES", 2)
    big = scenario(workers=32, devices=1, nodes=32, network={"bandwidth": "25 Gbit/s", "latency": "5 us"})
    with pytest.raises(InputError) as error:
        measure(big, on="netlab")
    assert str(error.value) == (
        "lab: cluster.network.bandwidth: 32 hosts of up to 25.0 Gbit/s move up to 800 Gbit/s at once, 2 cores 100 Gbit/s at "
        'most; measure a slower network: --set "cluster.network.bandwidth=200 Mbit/s"'
    )
    monkeypatch.setattr(compatibility, "_CORES", 64)
    compatibility.check(big)


@needs_netlab
def test_a_run_records_the_link_between_ranks_of_one_host() -> None:
    reported = measure(scenario(), on="netlab").provenance
    assert reported["inside a host"] == "loopback, not limited"
    assert "cluster.node.link is not limited" in reported["warnings"]
