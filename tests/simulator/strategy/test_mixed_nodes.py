"""Jobs on nodes with different devices."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

MODEL = {"kind": "gpt", "layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 8192, "sequence": 512, "flash": True}
# The device of half of another's speed: what a straggler of slowdown 2 is.
FULL = {
    "name": "full", "peak": {"bf16": "100 TFLOP/s"}, "memory": "24 GiB", "memory_bandwidth": "1 TB/s", "efficiency": 0.5,
    "layer_overhead": "10 us",
}  # fmt: skip
HALF = FULL | {"name": "half", "peak": {"bf16": "50 TFLOP/s"}, "memory": "12 GiB", "memory_bandwidth": "500 GB/s"} | {
    "layer_overhead": "20 us"
}  # fmt: skip


def scenario(nodes: Any, workers: int = 3, **changes: Any) -> Scenario:
    return load({
        "model": MODEL, "batch": 24, "training": {"precision": "bf16", "optimizer": "adam"},
        "cluster": {"node": {}, "network": "25-gbe", "device": FULL, "nodes": nodes, "collectives": {"library": "fastest"}},
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
        ([{"count": 2, "devices": 4}], {}, "no field 'devices'"),
        ([{"count": 0}], {}, "0 is no number of nodes"),
        ([3], {}, "expected a kind of nodes"),
        ([], {}, "empty list"),
    ],
)
def test_what_does_not_work_says_what_to_do(nodes: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(nodes, **changes)


def test_plans_need_equal_devices() -> None:
    with pytest.raises(FieldError, match="equal devices"):
        plan(scenario([{"count": 2}, {"count": 1, "device": HALF}]))
