"""Quantities of a cluster: intervals, and clusters in which one of them is slower."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, parse_share, slowed, uncertain
from scaleproof.simulator.common.errors import FieldError, ScaleproofError, UnitError
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device
from tests.simulator.clusters import plain

_LINKED = {"overhead": "2 us"}


@pytest.mark.parametrize("name", QUANTITIES)
@given(slowdown=st.floats(0.2, 5))
def test_the_inverse_slowdown_restores_the_cluster(name: str, slowdown: float) -> None:
    cluster = plain(2, 4, link=_LINKED, network=_LINKED)
    quantity = QUANTITIES[name]
    worse = quantity.slowed(cluster, slowdown)
    value, changed = quantity.value(cluster), quantity.value(worse)
    if value not in (None, 1.0):
        assert changed is not None
        assert (value / changed if quantity.larger_is_faster else changed / value) == pytest.approx(slowdown)
    again = quantity.value(quantity.slowed(worse, 1 / slowdown))
    assert again == (None if value is None else pytest.approx(value))


def test_link_quantities_exist_only_for_existing_links() -> None:
    cluster, alone = plain(2, 4, link=_LINKED, network=_LINKED), plain(link=None, network=None)
    values = {"bandwidth": (100e9, 10e9), "latency": (1e-6, 10e-6), "overhead": (2e-6, 2e-6)}
    for number, (inside, between) in values.items():
        for name, value in ((f"node.link.{number}", inside), (f"network.{number}", between)):
            quantity = QUANTITIES[name]
            assert quantity.value(cluster) == pytest.approx(value)
            assert quantity.parse(quantity.format(value)) == pytest.approx(value)
            assert quantity.value(alone) is None
            assert quantity.slowed(alone, 2.0) == alone


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        ("netlab-ring", ("device", "network.bandwidth", "network.latency")),
        ("ring-2", ("device", "optimizer", "collectives", "node.link.bandwidth", "node.link.latency")),
    ],
)
def test_slowing_all_quantities_by_a_factor_slows_the_step_by_it(scenario: str, names: tuple[str, ...]) -> None:
    given = load(scenario)
    worse = given.model_copy(update={"cluster": slowed(given.cluster, dict.fromkeys(names, 1.5))})
    assert predict(worse).step_time_s == pytest.approx(1.5 * predict(given).step_time_s, rel=1e-6)


def test_a_prior_is_used_for_quantities_without_an_interval() -> None:
    cluster = plain(2)
    assert uncertain(cluster)["network.bandwidth"] == pytest.approx(QUANTITIES["network.bandwidth"].prior)
    assert "optimizer" not in uncertain(cluster)  # none was measured
    assert "network.overhead" not in uncertain(cluster)  # there is none


def test_paths_that_a_file_leaves_open_are_rather_slower() -> None:
    """PCIe switches that are not stated, and connections over TCP; what is stated keeps the narrow prior."""
    pcie = {"nodes": 2, "node": {"devices": 8, "link": "pcie-4-x16"}, "device": load_device("l40s"), "network": "100-gbe"}
    tree = {"base": "pcie-4-x16", "topology": {"kind": "pcie_tree", "per_switch": 4, "between_sockets": "40 GB/s"}}
    known = pcie | {"node": {"devices": 8, "link": tree}, "network": "100-roce"}
    for name in ("node.link.bandwidth", "network.bandwidth"):
        low, high = QUANTITIES[name].slowdown_interval(Cluster.model_validate(pcie))
        assert high > 2
        assert low > 1 / high
        low, high = QUANTITIES[name].slowdown_interval(Cluster.model_validate(known))
        assert high < 1.3
        assert low == pytest.approx(1 / high)


def test_intervals_are_absolute_or_relative() -> None:
    given = {
        "network.bandwidth": {"low": "5 GB/s", "high": "20 GB/s"},  # around 10 GB/s
        "network.latency": {"low": "9 us", "high": "12 us"},
        "device": {"low": "90 %", "high": "120 %"},
    }
    cluster = plain(2, uncertainty=given)
    assert QUANTITIES["network.bandwidth"].slowdown_interval(cluster) == pytest.approx((0.5, 2.0))
    assert QUANTITIES["network.latency"].slowdown_interval(cluster) == pytest.approx((0.9, 1.2))
    assert QUANTITIES["device"].slowdown_interval(cluster) == pytest.approx((0.9, 1.2))
    assert uncertain(cluster)["device"] == pytest.approx(math.log(1.2 / 0.9) / (2 * DEVIATIONS))


@pytest.mark.parametrize(
    ("name", "interval", "message"),
    [
        ("bandwidth", {"low": "1 GB/s", "high": "2 GB/s"}, "no such quantity; give one of device"),
        ("network.bandwidth", {"low": "3 GB/s", "high": "2 GB/s"}, "from 3 GB/s to 2 GB/s is no interval"),
        ("network.latency", {"low": "-1 us", "high": "2 us"}, "'-1 us' is negative"),
        ("device", {"low": "a lot", "high": "120 %"}, "cannot read 'a lot' as a share; write it like '104 %'"),
        ("optimizer", {"low": "90 %", "high": "120 %"}, "the cluster has no such number; leave the interval out"),
    ],
)
def test_invalid_intervals_are_rejected_with_their_place(name: str, interval: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message.replace("(", r"\(")) as caught:
        plain(2, uncertainty={name: interval})
    assert caught.value.field[:2] == ("uncertainty", name)
    assert isinstance(caught.value, ScaleproofError)


@given(st.floats(1e-3, 1e3))
def test_shares_are_parsed_and_formatted_consistently(share: float) -> None:
    assert parse_share(format_percent(share)) == pytest.approx(share, abs=6e-4)


@pytest.mark.parametrize("text", ["", "0 %", "-4 %", "nan", "inf", True, None])
def test_invalid_shares_are_rejected(text: object) -> None:
    with pytest.raises(UnitError):
        parse_share(text)
