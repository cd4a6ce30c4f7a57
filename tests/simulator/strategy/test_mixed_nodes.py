"""Jobs on nodes with different devices."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import nodes_of_ranks

MODEL = {"kind": "gpt", "layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 8192, "sequence": 512, "flash": True}
# The device of half of another's speed: what a straggler of slowdown 2 is.
FULL = {
    "name": "full", "peak": {"bf16": "100 TFLOP/s"}, "memory": "24 GiB", "memory_bandwidth": "1 TB/s", "efficiency": 0.5,
    "layer_overhead": "10 us",
}  # fmt: skip
HALF = FULL | {"name": "half", "peak": {"bf16": "50 TFLOP/s"}, "memory": "12 GiB", "memory_bandwidth": "500 GB/s"} | {
    "layer_overhead": "20 us"
}  # fmt: skip
TENSOR = {"kind": "hybrid", "workers": 3, "tensor": 2}


def scenario(nodes: Any, workers: int = 3, devices: int = 1, network: Any = "25-gbe", **changes: Any) -> Scenario:
    node = {"devices": devices, "link": "pcie-4-x16"}
    return load({
        "model": MODEL, "batch": 24, "training": {"precision": "bf16", "optimizer": "adam"},
        "cluster": {"node": node, "network": network, "device": FULL, "nodes": nodes, "collectives": {"library": "fastest"}},
        "strategy": {"kind": "data_parallel", "workers": workers}, "framework": "ideal", **changes,
    })  # fmt: skip


def run(nodes: Any, **changes: Any) -> Run:
    return predict(scenario(nodes, **changes), interval=False)


def test_kinds_with_the_same_device_are_one_cluster() -> None:
    listed = run([{"count": 1}, {"count": 2, "device": FULL | {"name": "same"}}])
    assert listed.step_time_s == pytest.approx(run(3).step_time_s, rel=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_device_of_half_the_speed_is_a_straggler(zero: int) -> None:
    training = {"precision": "bf16", "optimizer": "adam", "zero": zero}
    mixed = run([{"count": 2}, {"count": 1, "device": HALF}], training=training)
    straggling = run(3, training=training, unevenness={"stragglers": [{"ranks": 2, "slowdown": 2}]})
    assert mixed.step_time_s == pytest.approx(straggling.step_time_s, rel=1e-6)
    assert mixed.breakdown_s["waiting_for_ranks"] == pytest.approx(straggling.breakdown_s["waiting_for_ranks"], rel=1e-4)


def test_shares_by_speed_remove_the_waits_of_fast_ranks() -> None:
    nodes = [{"count": 2}, {"count": 1, "device": HALF}]
    equal = run(nodes, batch=60)
    auto = scenario(nodes, batch={"total": 60, "shares": "auto"})
    assert auto.strategy.plan.shares == (24, 24, 12)
    balanced = predict(auto, interval=False)
    assert balanced.step_time_s < equal.step_time_s
    assert balanced.breakdown_s["waiting_for_ranks"] < 0.1 * equal.breakdown_s["waiting_for_ranks"]
    assert "2 workers (full)" in balanced.provenance["notes"]
    assert balanced.provenance["notes"].endswith("samples of the workers: 24, 24, 12")


def test_shares_of_equal_devices_are_equal_and_whole_microbatches() -> None:
    strategy = {"kind": "data_parallel", "workers": 3, "shares": "auto", "microbatches": 4}
    assert scenario(3, strategy=strategy).strategy.plan.shares == (8, 8, 8)
    mixed = scenario([{"count": 1}, {"count": 2, "device": HALF}], strategy=strategy).strategy.plan.shares
    assert mixed is not None
    assert sum(mixed) == 24
    assert all(share % 4 == 0 for share in mixed)
    assert mixed[0] == max(mixed)


def test_a_stage_on_a_slower_node_is_a_straggler() -> None:
    strategy = {"kind": "pipeline", "stages": 3, "microbatches": 12}
    slow_end = run([{"count": 2}, {"count": 1, "device": HALF}], strategy=strategy)
    straggling = run(3, strategy=strategy, unevenness={"stragglers": [{"ranks": 2, "slowdown": 2}]})
    assert slow_end.step_time_s == pytest.approx(straggling.step_time_s, rel=1e-6)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_node_with_fewer_devices_is_one_whose_others_idle(zero: int) -> None:
    """Ranks of a full node and of half of one are those that fill two full nodes in order."""
    training = {"precision": "bf16", "optimizer": "adam", "zero": zero}
    idle = run(2, workers=6, devices=4, training=training)
    listed = run([{"devices": 4}, {"devices": 2}], workers=6, training=training)
    assert listed.step_time_s == pytest.approx(idle.step_time_s, rel=1e-9)
    turned = run([{"devices": 2}, {"devices": 4}], workers=6, training=training)
    assert turned.step_time_s == pytest.approx(idle.step_time_s, rel=1e-9), "the order of nodes makes no difference"


def test_a_ring_passes_all_devices_of_unequal_nodes_once() -> None:
    """Each of 2 · 8 rounds over 9 devices sends a ninth of the gradients out of every node, however many devices it has."""
    strategy = {"kind": "data_parallel", "workers": 9, "overlap": False, "algorithm": "ring"}
    nodes = [{"devices": 2}, {"devices": 4}, {"devices": 3, "device": HALF}]
    given = scenario(nodes, strategy=strategy, batch=36)
    size_bytes = 2 * given.model.parameters()
    slow, fast = (
        run(nodes, strategy=strategy, batch=36, network={"bandwidth": f"{rate} Gbit/s", "latency": 0}) for rate in (1, 2)
    )
    assert slow.step_time_s - fast.step_time_s == pytest.approx(2 * 8 * (size_bytes / 9) * (8e-9 - 4e-9), rel=1e-6)
    assert "2 workers (full)" in slow.provenance["notes"]
    assert "3 workers (half)" in slow.provenance["notes"]


def test_each_rank_has_a_place_on_a_node_with_room() -> None:
    cluster = scenario([{"devices": 2}, {"devices": 4}, {"count": 2, "devices": 1}], workers=8).cluster
    assert (cluster.devices, cluster.node.devices) == (8, 4)
    assert [cluster.place(rank) for rank in range(8)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (3, 0)]
    assert nodes_of_ranks(scenario([{"devices": 2}, {"devices": 4}], workers=6)) == [0, 0, 1, 1, 1, 1], "of real runs as well"
    assert [cluster.nodes_of(ranks) for ranks in (1, 2, 3, 6, 7, 8, 9, 13)] == [1, 1, 2, 2, 3, 4, 5, 6]


def test_groups_that_divide_layers_fit_into_unequal_nodes() -> None:
    idle, listed = run(2, devices=4, strategy=TENSOR), run([{"devices": 4}, {"devices": 2}], strategy=TENSOR)
    assert listed.step_time_s == pytest.approx(idle.step_time_s, rel=1e-9)
    stages = {"kind": "pipeline", "stages": 3, "microbatches": 12}
    turned = run([{"devices": 1}, {"devices": 2}], strategy=stages)
    straight = run([{"devices": 2}, {"devices": 1}], strategy=stages)
    assert turned.step_time_s == pytest.approx(straight.step_time_s, rel=0.02), "the slow link is after another stage"


def test_hosts_of_nodes_with_fewer_devices_update_for_fewer() -> None:
    """A host's rate is divided by its own devices: that of the fullest node is the slowest."""
    training = {"precision": "bf16", "optimizer": "adam", "zero": 2, "offload": ["optimizer"]}
    given = {"training": training, "framework": "deepspeed"}
    unequal = run([{"devices": 4}, {"devices": 2}], workers=6, **given)
    assert unequal.step_time_s == pytest.approx(run(2, workers=6, devices=4, **given).step_time_s, rel=1e-9)
    assert run([{"count": 3, "devices": 2}], workers=6, **given).step_time_s < 0.8 * unequal.step_time_s


def test_memory_fits_the_device_of_each_kind() -> None:
    use = memory(scenario([{"count": 2}, {"count": 1, "device": HALF}], batch={"total": 60, "shares": "auto"}))
    by_name = {rank.name: rank for rank in use.ranks}
    fast, slow = by_name["worker on full"], by_name["worker on half"]
    assert fast.total_bytes > slow.total_bytes, "of twice the samples"
    assert (fast.capacity_bytes, slow.capacity_bytes) == (24 * 2**30, 12 * 2**30)
    crowded = memory(scenario([{"count": 2}, {"count": 1, "device": HALF | {"memory": "1 GiB"}}]))
    assert not crowded.fits
    assert crowded.worst.name == "worker on half"


def test_slower_cards_and_links_of_a_kind_limit_collectives() -> None:
    slow = run([{"count": 2}, {"count": 1, "network": "1 Gbit/s"}])
    assert slow.step_time_s > 5 * run(3).step_time_s
    mixed = scenario([{"count": 1}, {"count": 1, "device": HALF, "link": "pcie-3-x8"}], workers=2).cluster
    assert mixed.node.link is not None
    assert mixed.node.link.bandwidth_Bps == 7.88e9


def test_a_dumped_scenario_has_the_same_step() -> None:
    given = scenario([{"count": 2}, {"count": 1, "device": "rtx-3090"}])
    again = load(yaml.safe_load(dump(given)))
    assert predict(again, interval=False).step_time_s == predict(given, interval=False).step_time_s


@pytest.mark.parametrize(
    ("nodes", "changes", "message"),
    [
        ([{"count": 2}, {"count": 1, "device": HALF}], {"strategy": {"kind": "local_sgd", "workers": 3}}, "use data_parallel"),
        ([{"count": 2}, {"count": 1, "device": HALF | {"peak": {"fp32": "1 TFLOP/s"}}}], {}, "half has no peak rate for bf16"),
        ([{"count": 2, "gpus": 4}], {}, "no field 'gpus'"),
        ([{"count": 2, "devices": 0}], {}, "0 is no number of devices"),
        ([{"devices": 3}, {"devices": 4}], {"strategy": TENSOR}, "straddle .* give a divisor of 3 and 4"),
        ([{"devices": 2}, {"devices": 1}], {"workers": 4}, "4 ranks for 3 devices of 2 nodes"),
        ([{"count": 0}], {}, "0 is no number of nodes"),
        ([3], {}, "expected a kind of nodes"),
        ([], {}, "empty list"),
    ],
)
def test_what_does_not_work_says_what_to_do(nodes: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(nodes, **changes)


def test_hybrids_take_shares_of_any_total() -> None:
    """Seven samples of three workers, which divide layers or not."""
    shares = {"workers": 3, "shares": [3, 3, 1]}
    workers, hybrid = (
        run([{"count": 2}, {"count": 1, "device": HALF}], batch=7, strategy={"kind": kind, **shares} | more)
        for kind, more in (("data_parallel", {"overlap": True}), ("hybrid", {"overlap": True}))
    )
    assert hybrid.step_time_s == workers.step_time_s
    assert hybrid.samples == 7
    node = {"devices": 2, "link": {"bandwidth": "50 GB/s", "latency": "5 us"}}
    cluster = {"node": node, "network": "25-gbe", "device": FULL, "nodes": [{"count": 1}, {"count": 1, "device": HALF}]}
    auto = {"kind": "hybrid", "workers": 2, "tensor": 2, "shares": "auto"}
    divided = scenario([], cluster=cluster | {"collectives": {"library": "fastest"}}, strategy=auto)
    assert divided.strategy.plan.shares == (16, 8)
    with pytest.raises(ScenarioError, match="they add up to 7 samples, the batch has 8"):
        scenario(3, batch=8, strategy={"kind": "hybrid", **shares})
