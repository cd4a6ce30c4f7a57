"""Strategies on different topologies: effects of trees, tori and links of different bandwidths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.engine import events
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import ONLY_COMPUTE, compiled
from tests.validator.verdicts import in_bulk

Make = Callable[..., Scenario]
STRATEGIES = {
    "ring": "strategy={kind: data_parallel, workers: 16}",
    "servers": "strategy={kind: parameter_server, workers: 16, servers: 4}",
    "colocated": "strategy={kind: parameter_server, workers: 16, servers: 4, placement: colocated}",
    "pipeline": "strategy={kind: pipeline, stages: 6, microbatches: 12}",
    "hybrid": "strategy={kind: hybrid, workers: 8, stages: 4, microbatches: 4}",
}
NETWORKS = {
    "leaf_spine": "{kind: leaf_spine, per_leaf: 2, spines: 2, oversubscription: 1.0001}",
    "fat_tree": "{kind: fat_tree, per_leaf: 2, leaves_per_pod: 2, spines_per_pod: 2, cores: 2, oversubscription: 1.0001}",
    "rails": "{kind: rail_optimised, nodes_per_group: 2, spines: 2, oversubscription: 1.0001}",
    "torus": "{kind: torus, dimensions: [2, 4]}",
    "dragonfly": "{kind: dragonfly, per_router: 2, routers_per_group: 2, groups: 2, local: 10 Gbit/s, global: 10 Gbit/s}",
}
INSIDE = {
    "mesh": "{kind: mesh}",
    "pcie_tree": "{kind: pcie_tree, per_switch: 2, switches_per_socket: 1, between_sockets: 5 GB/s}",
}


def step_time_s(small: Make, strategy: str, *overrides: str) -> float:
    cards = "cluster.node.cards=4"
    return predict(small(STRATEGIES[strategy], "batch=960", cards, *overrides)).step_time_s


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("network", ["rails", *in_bulk("leaf_spine", "fat_tree")])
def test_a_non_blocking_tree_equals_one_switch(small: Make, strategy: str, network: str) -> None:
    """Every link and every rank modelled individually, against equivalent ones folded on one switch.

    If the topology distinguishes cards, a rank's messages cannot use the others' cards while they are free.
    """
    one_switch_s = step_time_s(small, strategy)
    rel = 0.1 if network == "rails" else 2e-4
    assert step_time_s(small, strategy, f"cluster.network.topology={NETWORKS[network]}") == pytest.approx(one_switch_s, rel=rel)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("network", [*list(NETWORKS)[::2], *INSIDE, *in_bulk(*list(NETWORKS)[1::2])])
def test_every_strategy_runs_on_every_topology_and_none_is_faster_than_one_switch(
    small: Make, strategy: str, network: str
) -> None:
    inside = network in INSIDE
    link, topology = ("node.link", INSIDE[network]) if inside else ("network", NETWORKS[network])
    assert step_time_s(small, strategy, f"cluster.{link}.topology={topology}") >= step_time_s(small, strategy) * 0.999


@pytest.mark.parametrize("strategy", ["ring", "servers", "colocated", "hybrid"])
def test_oversubscription_slows_what_crosses_leaves(small: Make, strategy: str) -> None:
    tree = "cluster.network.topology={{kind: leaf_spine, per_leaf: 1, spines: 1, oversubscription: {}}}"
    times = [step_time_s(small, strategy, tree.format(factor)) for factor in (1, 2, 4)]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_half_duplex_incast_overhead_and_odd_links_only_ever_slow(small: Make, strategy: str) -> None:
    plain_s = step_time_s(small, strategy)
    for change in ("duplex=half", "incast=0.1", "overhead=1 ms", "exceptions=[{at: [1], bandwidth: 1 Gbit/s}]"):
        assert step_time_s(small, strategy, f"cluster.network.{change}") >= plain_s * (1 - 1e-9), change


def test_servers_with_many_senders_are_slowed_by_incast(small: Make) -> None:
    servers = "strategy={kind: parameter_server, workers: 4, servers: 1}"
    one_device = "cluster.node.devices=1"
    plain, incast = (predict(small(servers, one_device, f"cluster.network.incast={i}")) for i in (0, 0.5))
    push_s = [run.phase_s["send"] for run in (plain, incast)]
    # four senders: the server's link carries 1 / (1 + 0.5 · 3) of what it could
    assert push_s[1] / push_s[0] == pytest.approx(2.5, rel=0.02)


def test_equivalent_nodes_stay_folded_on_a_non_blocking_network(small: Make) -> None:
    def classes(*overrides: str) -> int:
        scenario = small(STRATEGIES["colocated"], "batch=960", *overrides)
        return len(compile_step(scenario.strategy, job_of(scenario, scenario.samples_per_worker)).ranks.names)

    assert classes() == classes("cluster.network.topology={kind: leaf_spine, per_leaf: 2}") == 2
    assert classes("cluster.network.topology={kind: leaf_spine, per_leaf: 2, oversubscription: 2}") == 20
    assert classes("cluster.network.exceptions=[{at: [1], bandwidth: 1 Gbit/s}]") == 20


@pytest.mark.parametrize(("nodes", "each"), [(8, 1), (4, 2), (2, 1)])
@pytest.mark.parametrize("separate", [False, True])
def test_nodes_that_are_parts_of_one_machine_share_its_cores(small: Make, nodes: int, each: int, separate: bool) -> None:
    """n ranks on c cores take n / c times as long, folded or not."""
    workers = nodes * each
    odd = ["unevenness={stragglers: [{ranks: [1], slowdown: 1.0}]}"] if separate else []
    fixed = (
        f"strategy={{kind: data_parallel, workers: {workers}, overlap: false}}", "batch={per_worker: 1}",
        f"cluster.nodes={nodes}", f"cluster.node.devices={each}", *ONLY_COMPUTE,
    )  # fmt: skip
    alone, shared = (small(*fixed, *odd, *more) for more in ((), ["cluster.shared_cores=1.5"]))
    assert predict(shared).step_time_s == pytest.approx(workers / 1.5 * predict(alone).step_time_s, rel=1e-3)
    ends_s = events.simulate(compiled(shared), 3).step_ends_s()
    assert float(ends_s[-1] - ends_s[-2]) == pytest.approx(predict(shared).step_time_s, rel=1e-6)


def test_messages_keep_shared_cores_busy_at_both_ends(small: Make) -> None:
    """Two stages on nodes that share half a core: one that moves at full bandwidth would keep a whole one busy."""
    fixed = ("strategy={kind: pipeline, stages: 2}", "cluster.node.devices=1", "cluster.network.cores_busy=1")
    links = ("cluster.device.memory_bandwidth=1 EB/s", "cluster.network.bandwidth=1 Mbit/s")
    free, shared = (predict(small(*fixed, *links, *more)).step_time_s for more in ((), ("cluster.shared_cores=0.5",)))
    assert shared == pytest.approx(2 * free, rel=0.05)


GATHERS = "{op: all_gather, ranks: 2, nodes: 2, bandwidth: %s Mbit/s, latency: 0 s}"
SLOWER_LINK = "cluster.network.exceptions=[{at: [1], bandwidth: 50 Mbit/s}]"
OTHERS = "unevenness.tenants=[{nodes: [1], share: 0.5}]"


def gathers_s(rate: float | None, *overrides: str) -> float:
    """Seconds of FSDP's all-gathers between two hosts of 100 Mbit/s: measured at `rate` Mbit/s of the whole buffer, or
    modelled."""
    measured = f"[{GATHERS % rate}]" if rate else "[]"
    network = f"cluster.collectives={{library: gloo, measured: {measured}}}", "cluster.network.bandwidth=100 Mbit/s"
    fixed = "strategy={kind: data_parallel, workers: 2}", "training.zero=3", *network
    run = timed(load("netlab-fsdp", [*fixed, *overrides]))
    (gathers,) = (one for one in run.communication if "all-gather" in one.label)
    return gathers.time_s


@pytest.mark.parametrize("rate", [200, 140, None], ids=["links are full", "links are idle in between", "modelled"])
@pytest.mark.parametrize("slower", [SLOWER_LINK, OTHERS], ids=["slower link", "others' traffic"])
def test_a_pair_of_ranks_takes_turns_on_slower_links_too(rate: float | None, slower: str) -> None:
    """Each link carries half of the buffer, so that 200 Mbit/s of it fill the links."""
    assert gathers_s(rate, slower) == pytest.approx(2 * gathers_s(rate), rel=0.05)


def test_what_was_measured_on_a_slower_link_is_not_slowed_again() -> None:
    assert gathers_s(70, SLOWER_LINK) == pytest.approx(gathers_s(70), rel=0.02)
