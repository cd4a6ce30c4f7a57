"""Flows of the self-test saturate each end of a link without saturating other ends, where possible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.validator.netlab.fan_flows import Fan, fans
from scaleproof.validator.netlab.wiring import WiringPlan, plan
from tests.validator.netlabs import lab_cluster


def _plan(hosts: int, rate: str = "100 Mbit/s", **network: Any) -> WiringPlan:
    return plan(lab_cluster(hosts, rate, **network))


def _fans(lab: WiringPlan) -> dict[str, Fan]:
    return {fan.name: fan for fan in fans(lab)}


def _pairs(fan: Fan) -> list[tuple[int, int]]:
    return [(flow.source, flow.target) for flow in fan.flows]


def test_each_of_several_equal_hosts_sends_to_two_and_receives_from_two() -> None:
    found = _fans(_plan(4))
    assert _pairs(found["out of host 1"]) == [(1, 0), (1, 2)]
    assert _pairs(found["into host 1"]) == [(0, 1), (2, 1)]
    assert {fan.expected_Bps * 8 for fan in found.values()} == {100e6}


@pytest.mark.parametrize(("faster", "others"), [("200 Mbit/s", 3), ("50 Mbit/s", 1)])
def test_a_faster_host_needs_more_peers(faster: str, others: int) -> None:
    found = _fans(_plan(6, exceptions=[{"at": [2], "bandwidth": faster}]))
    assert len(found["out of host 2"].flows) == len(found["into host 2"].flows) == others


@pytest.mark.parametrize("lab", [_plan(2), _plan(3, exceptions=[{"at": [0], "bandwidth": "200 Mbit/s"}])])
def test_links_that_others_cannot_saturate_have_no_flows(lab: WiringPlan) -> None:
    assert _fans(lab)["out of host 0"].flows == ()
    assert _fans(lab)["into host 0"].flows == ()


def test_uplinks_are_saturated_to_and_from_several_leaves() -> None:
    found = _fans(_plan(6, topology={"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 2}))
    assert _pairs(found["out of leaf 0"]) == [(0, 2), (1, 4)]
    assert _pairs(found["into leaf 0"]) == [(2, 0), (4, 1)]
    assert found["into leaf 0"].expected_Bps * 8 == 100e6


def test_uplinks_of_two_leaves_cannot_be_tested_separately() -> None:
    found = _fans(_plan(4, topology={"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 2}))
    assert found["out of leaf 0"].flows == found["into leaf 1"].flows == ()


def test_uplinks_that_hosts_cannot_saturate_are_skipped() -> None:
    found = _fans(_plan(6, topology={"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 1}))
    assert not [name for name in found if "leaf" in name]


@given(st.integers(2, 12), st.integers(1, 5), st.floats(0.5, 8), st.integers(1, 9))
def test_peers_saturate_a_fan_on_any_topology(hosts: int, per_leaf: int, oversubscription: float, times: int) -> None:
    """The other ends of its flows carry more than the one that is tried."""
    topology = {"kind": "leaf_spine", "per_leaf": per_leaf, "oversubscription": oversubscription}
    lab = _plan(hosts, topology=topology, exceptions=[{"at": [0], "bandwidth": f"{times * 50} Mbit/s"}])
    for name, fan in _fans(lab).items():
        if name.startswith("out of") and fan.flows:
            assert sum(lab.hosts[flow.target].rate_Bps for flow in fan.flows) > fan.expected_Bps
            assert len({flow.target for flow in fan.flows}) == len(fan.flows)
