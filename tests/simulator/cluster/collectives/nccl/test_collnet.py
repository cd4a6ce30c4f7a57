"""NCCL on networks whose switches reduce: what it chooses, and what crosses the network."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.collectives.nccl.tuner import Case, Curve, candidates
from scaleproof.simulator.cluster.collectives.settings import Nccl
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from tests.simulator.cluster.collectives.nccl.cases import BLACKWELL, HOPPER, CARD_Bps, choice, constants, links, seconds

AMPERE = Nccl(generation="ampere")
WITHOUT_NVLS = HOPPER.model_copy(update={"nvls": False})
LARGE = 2**36


def test_nccl_has_collnet_only_where_the_network_states_that_it_reduces() -> None:
    assert candidates("all_reduce", links(16), HOPPER) == ["ring", "tree", "nvls_tree"]
    assert candidates("all_reduce", links(16, reduces=True), HOPPER) == [
        "ring", "tree", "nvls_tree", "collnet_chain", "collnet_direct", "nvls",
    ]  # fmt: skip
    assert candidates("all_reduce", links(8, reduces=True), HOPPER) == ["ring", "tree", "nvls"]  # one node has no network
    assert candidates("all_reduce", links(12, reduces=True), HOPPER) == ["ring", "tree", "nvls_tree"]  # eight ranks and four
    assert candidates("all_reduce", links(16, reduces=True), Nccl(generation="cdna")) == ["ring", "tree"]


def test_gathers_over_reducing_switches_need_a_card_for_each_rank_and_a_version_that_has_them() -> None:
    old, older = (HOPPER.model_copy(update={"version": version}) for version in ("2.26", "2.19"))
    for op in ("all_gather", "reduce_scatter"):
        assert candidates(op, links(16, reduces=True), HOPPER) == ["ring", "collnet_direct", "nvls"]  # type: ignore[arg-type]
        assert candidates(op, links(16, reduces=True), old) == ["ring", "collnet_direct"]  # type: ignore[arg-type]
        assert candidates(op, links(16, reduces=True), older) == ["ring"]  # type: ignore[arg-type]
        assert candidates(op, links(16, reduces=True, cards=4), HOPPER) == ["ring"]  # type: ignore[arg-type]
    assert candidates("broadcast", links(16, reduces=True), HOPPER) == ["ring"]


def test_collnet_direct_needs_nvswitch_and_at_most_eight_ranks_of_a_node() -> None:
    pcie = Nccl(generation="ampere", interconnect="pcie")
    assert "collnet_direct" not in candidates("all_reduce", links(16, reduces=True), pcie)
    assert "collnet_direct" not in candidates("all_reduce", links(144, reduces=True, devices=72, cards=72), BLACKWELL)
    assert "collnet_direct" in candidates("all_reduce", links(16, reduces=True), AMPERE)


@pytest.mark.parametrize("algorithm", ["collnet_direct", "collnet_chain", "nvls"])
def test_bus_bandwidth_of_large_sums_does_not_depend_on_the_number_of_ranks(algorithm: str) -> None:
    """Each node sends its data up once and gets the sum once, however many nodes there are."""
    times = [seconds("all_reduce", links(ranks, reduces=True), LARGE, HOPPER, algorithm) for ranks in (16, 64, 1024)]
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)


def test_a_network_with_reducing_switches_carries_half_of_a_rings_data() -> None:
    """Where cards are the bottleneck, sums take half of the time of a ring's, but for what SHARP does not reach."""
    slow = links(1024, reduces=True, cards=1)
    known = constants()
    reduced, ring = (seconds("all_reduce", slow, LARGE, HOPPER, name) for name in ("nvls", "ring"))
    assert reduced * known.sharp_share / ring == pytest.approx(1 / 2, rel=0.02)
    assert LARGE / reduced == pytest.approx(0.96 * known.between_share * known.sharp_share * CARD_Bps, rel=0.01)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_latency_of_reducing_switches_does_not_depend_on_the_number_of_nodes(op: Op) -> None:
    few, many = (seconds(op, links(ranks, reduces=True), 8, HOPPER, "collnet_direct") for ranks in (16, 1024))
    assert few == pytest.approx(many, rel=1e-3)
    assert seconds(op, links(1024), 8) > 2 * many  # logarithmic or linear without


def test_nccl_chooses_reducing_switches_on_many_nodes() -> None:
    many = links(512, reduces=True)
    for size in (2**10, 2**20, 2**28):
        assert choice("all_reduce", many, size) == "nvls"
        assert choice("all_reduce", many, size, WITHOUT_NVLS).startswith("collnet")
        assert seconds("all_reduce", many, size) < seconds("all_reduce", links(512), size)
    assert choice("all_gather", many, 2**20, WITHOUT_NVLS) == "collnet_direct"


def test_the_tuner_expects_what_nccl_publishes() -> None:
    """tuning.cc: 2 · (3.7 + 7 · 0.4) + 31 us; half of eight cards of 48 GB/s, on Hopper 85 % of it."""

    def expected(algorithm: str, facts: Nccl = HOPPER, cards: int = 8) -> Curve:
        found = Case("all_reduce", links(64, reduces=True, cards=cards), facts, algorithm).curve("simple")
        assert isinstance(found, Curve)
        return found

    assert expected("collnet_direct").latency_s == pytest.approx(44e-6)
    assert expected("collnet_chain").latency_s == pytest.approx((2 * 7 * 2.8 + 30) * 1e-6)
    assert expected("nvls").latency_s == pytest.approx(43e-6)
    # with a card for two ranks each, all data of every second rank go to another one first
    assert expected("collnet_direct", cards=4).rate_Bps == pytest.approx(0.85 * 4 * 48e9 / 2 / 1.5)
    assert expected("collnet_direct", AMPERE, cards=4).rate_Bps == pytest.approx(4 * 48e9 / 2 / 1.5)


def test_a_cluster_file_switches_it_on_and_an_error_says_how() -> None:
    known = load_cluster("dgx-h100").with_nodes(64)
    assert known.network is not None
    reducing = known.rebuilt(network=known.network.model_copy(update={"in_network_reduction": True}))
    plain_s, reduced_s = (collective_time("allreduce", 2**20, 512, where) for where in (known, reducing))
    assert reduced_s < plain_s
    assert collective_time("allreduce", 2**20, 512, reducing, "collnet_direct") > 0
    with pytest.raises(InputError, match=r"collnet_direct does not work on 512 ranks here.*network\.in_network_reduction"):
        collective_time("allreduce", 2**20, 512, known, "collnet_direct")
