"""Plans for nodes of different kinds: against predictions of all configurations, and which nodes do what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.plans import describe
from scaleproof.simulator.analysis.planner.arrangements import arrangements, node_words
from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import CLOSED
from scaleproof.simulator.analysis.planner.record import record_of
from scaleproof.simulator.analysis.planner.search import candidates_of, plan
from scaleproof.simulator.analysis.planner.sizes import plan_sizes
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.strategy.test_mixed_nodes import FULL, HALF, MODEL

HALF_NODE = {"count": 1, "device": HALF}


def job(nodes: Any, samples: int = 6, node: Any = None, **changes: Any) -> Scenario:
    cluster = {"node": node or {}, "network": "25-gbe", "device": FULL, "nodes": nodes, "collectives": {"library": "fastest"}}
    return load({
        "model": MODEL | {"layers": 4}, "batch": samples, "training": {"precision": "bf16", "optimizer": "adam"},
        "cluster": cluster, "strategy": {"kind": "hybrid"}, "framework": "ideal", **changes,
    })  # fmt: skip


def every_candidate(scenario: Scenario, gpus: int) -> Candidates:
    return candidates_of(scenario, gpus, 0, ("hybrid",), CLOSED, None)


# two kinds of nodes; nodes of two devices, of which tensor-parallel ranks share; of different numbers of devices; and a node
# with a slow network card
LINK = {"bandwidth": "50 GB/s", "latency": "5 us"}
JOBS: dict[str, tuple[Callable[[], Scenario], int]] = {
    "workers and stages": (lambda: job([{"count": 2}, HALF_NODE]), 3),
    "tensor": (lambda: job([{"count": 1}, HALF_NODE], node={"devices": 2, "link": LINK}), 4),
    "unequal numbers": (lambda: job([{"count": 1}, HALF_NODE | {"devices": 2}], node={"devices": 4, "link": LINK}), 6),
    "slow card": (lambda: job([{"count": 2}, HALF_NODE | {"network": "5 Gbit/s"}]), 3),
    "GPUs": (
        lambda: job(
            [{"count": 2}, {"count": 1, "device": "rtx-4090"}], framework="pytorch-fsdp2",
            cluster={
                "node": {"devices": 2, "link": "pcie-4-x16"}, "network": "25-gbe", "device": "a100-40gb-pcie",
                "nodes": [{"count": 1}, {"count": 1, "device": "rtx-4090"}],
            },
        ),
        4,
    ),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", JOBS)
def test_bounds_are_below_predictions_and_memory_is_that_of_predictions(name: str) -> None:
    make, gpus = JOBS[name]
    candidates = every_candidate(make(), gpus)
    rows = np.random.default_rng(0).choice(len(candidates), 120, replace=False)
    times, memory_bytes = candidates.times(rows), candidates.memory_bytes()[rows]
    assert candidates.cluster is not None
    for row, least_s, own_bytes in zip(rows.tolist(), times.least_s.tolist(), memory_bytes.tolist(), strict=True):
        scenario = candidates.scenario(row)
        assert least_s <= timed(scenario).step_time_s * (1 + 1e-9), candidates.row(row)
        use = memory(scenario)
        share = max(rank.total_bytes / (rank.capacity_bytes or use.capacity_bytes) for rank in use.ranks)
        assert own_bytes == pytest.approx(share * candidates.cluster.device.capacity_bytes), candidates.row(row)


@pytest.mark.full
@pytest.mark.parametrize("name", ["workers and stages", "slow card"])
def test_the_best_plan_is_the_best_of_all_predictions(name: str) -> None:
    make, gpus = JOBS[name]
    scenario = make()
    found, candidates = plan(scenario, gpus, top=3), every_candidate(scenario, gpus)
    fitting = np.flatnonzero(candidates.memory_bytes() <= found.capacity_bytes).tolist()
    seconds = sorted(timed(candidates.scenario(row)).step_time_s for row in fitting)
    assert found.proved
    assert found.best[0].value == pytest.approx(seconds[0], rel=1e-9)
    assert predict(found.best[0].scenario, interval=False).step_time_s == found.best[0].value


def test_fast_nodes_get_more_samples_or_more_blocks() -> None:
    fast_network = {
        "node": {},
        "network": {"bandwidth": "800 Gbit/s", "latency": "5 us"},
        "device": FULL,
        "nodes": [{"count": 2}, HALF_NODE],
    }
    shares = plan(job([], samples=40, cluster=fast_network, model=MODEL | {"layers": 1}), 3, top=1).best[0].scenario
    assert shares.strategy.plan.shares is not None
    fast, _, slow = shares.strategy.plan.shares
    assert fast == pytest.approx(2 * slow, abs=2)
    slow_network = {"node": {}, "network": "10-gbe", "device": FULL, "nodes": [{"count": 1}, HALF_NODE]}
    stages = plan(job([], samples=16, cluster=slow_network, model=MODEL | {"layers": 12}), 2, top=1).best[0].scenario
    assert stages.strategy.plan.stages == 2
    assert sorted(stages.strategy.plan.balance) in ([3, 9], [4, 8])


def test_a_node_that_costs_more_than_it_gives_is_left_out() -> None:
    scenario = job([{"count": 2}, HALF_NODE | {"network": "100 Mbit/s"}])
    (record,) = plan_sizes(scenario, [3], {"top": 2})
    assert record.proved
    assert (record.gpus, record.best[0].gpus) == (3, 2)
    assert record.best[0].configuration["nodes"] == "2 full"
    assert {row.configuration["nodes"] for row in record.by_nodes} >= {"2 full", "1 half", "2 full, 1 half"}
    text = " ".join(described(describe([record])).split())
    assert "No. 1 leaves nodes out, on 2 full: on " in text
    assert "more by time" in text


def test_memory_decides_what_a_small_card_does() -> None:
    small = HALF | {"memory": "600 MiB"}
    found = plan(job([{"count": 1}, {"count": 1, "device": small}], samples=16), 2, top=1)
    for one in found.by_nodes:
        assert memory(one.scenario).fits
        assert one.fits_probability is not None
        assert one.fits_probability >= 0.9


@pytest.mark.full
def test_two_a100_nodes_and_an_rtx_4090_node_share_the_samples(tmp_path: Path) -> None:
    scenario = load("gpt2-medium-mixed-machines", ["framework=deepspeed-zero"])
    (record,) = plan_sizes(scenario, [3], {"top": 2}, tmp_path)
    best = record.best[0]
    assert best.configuration["nodes"] == "2 A100-40GB-PCIe, 1 RTX-4090-24GB"
    fast, slow = map(int, best.configuration["shares"].split("/"))
    assert fast > slow
    again = load(str(tmp_path / "best-3.yaml"))
    assert predict(again, interval=False).step_time_s == pytest.approx(best.step_time_s, rel=1e-9)
    assert best.step_time_s < timed(scenario).step_time_s


def test_processors_of_two_speeds_share_the_samples() -> None:
    half = {"base": "cpu-32core", "name": "half", "peak": {"fp32": "0.8 TFLOP/s"}}
    cluster = {"base": "server-2x32-cpu", "network": "25-gbe", "nodes": [{"count": 1}, {"count": 1, "device": half}]}
    scenario = load({
        "model": MODEL | {"layers": 2, "flash": False}, "cluster": cluster, "batch": 12, "strategy": {"kind": "hybrid"},
        "training": {"precision": "fp32", "optimizer": "adam"},
    })  # fmt: skip
    found = plan(scenario, scenario.cluster.devices, top=1)
    best = found.best[0]
    assert found.proved
    assert best.value == predict(best.scenario, interval=False).step_time_s
    assert best.value <= min(one.value for one in found.by_nodes)


def test_nodes_without_others_have_their_own_link_and_network() -> None:
    nodes = [{"count": 2}, {"count": 1, "device": "rtx-4090", "link": "pcie-3-x8", "network": "10 Gbit/s"}]
    cluster = load("llama-2-7b", ["batch=24", f"cluster={{base: a100-64, nodes: {nodes}}}".replace("'", "")]).cluster
    by_words = {node_words(one): one for one in arrangements(cluster, 24)}
    fast, slow = by_words["2 A100-80GB-SXM"], by_words["1 RTX-4090-24GB"]
    both, turned = by_words["2 A100-80GB-SXM, 1 RTX-4090-24GB"], by_words["1 RTX-4090-24GB, 2 A100-80GB-SXM"]
    link = {words: one.node.link.bandwidth_Bps for words, one in by_words.items() if one.node.link is not None}
    assert link["2 A100-80GB-SXM"] == 300e9
    assert len(set(link.values())) == 2, "both have the slower one"
    assert fast.network is not None
    assert not fast.network.exceptions
    assert slow.network is not None
    assert slow.network.bandwidth_Bps == 10e9 / 8
    assert both.network is not None
    assert turned.network is not None
    assert [one.network.exceptions[0].at for one in (both, turned)] == [(2,), (0,)]
    assert [one.kinds[0].nodes for one in (both, turned)] == [(2,), (0,)]


def test_servers_and_samples_of_different_lengths_need_equal_nodes() -> None:
    with pytest.raises(InputError, match="parameter servers need equal devices on all nodes"):
        plan(job([{"count": 1}, HALF_NODE]), 2, strategies=("hybrid", "parameter_server"))
    lengths = {"total": 6, "lengths": {"distribution": "uniform", "mean": 200}}
    with pytest.raises(FieldError, match="nodes of different kinds are made for samples of one length"):
        plan(job([{"count": 1}, HALF_NODE], batch=lengths), 2)


def test_a_plan_says_on_which_nodes_it_is() -> None:
    found = record_of(plan(job([{"count": 1}, HALF_NODE]), 2, top=2), "0")
    text = described(describe([found]))
    assert "nodes, in the order of ranks" in text
    assert "in this order" in text
