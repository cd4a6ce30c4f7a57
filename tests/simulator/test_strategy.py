"""What theory says of each family, on clusters where theory is simple."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.events import simulate
from simulator.errors import ScenarioError
from simulator.model.layers import Layer
from simulator.predict import predict
from simulator.program import Kind
from simulator.scenario import Scenario
from simulator.strategy.costs import Job, buckets
from simulator.strategy.schedule import Op, order

# a network and devices on which nothing but bytes takes time, and one on which nothing but compute does
ONLY_COMPUTE = (
    "cluster.network={bandwidth: 1 EB/s, latency: 0}",
    "cluster.node.link={bandwidth: 1 EB/s, latency: 0}",
    "cluster.device.memory_bandwidth=1 EB/s",
)
EVEN = "model={kind: mlp, layers: 12, inputs: 64, hidden: 64, outputs: 64}"
Make = Callable[..., Scenario]


def job(scenario: Scenario) -> Job:
    return Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 4), (4, 12), (6, 24)])
def test_bubble_of_gpipe_and_1f1b(small: Make, schedule: str, stages: int, microbatches: int) -> None:
    """(p − 1) / (m + p − 1) of the step is idle: arXiv 1811.06965, 2104.04473."""
    strategy = f"strategy={{kind: pipeline, stages: {stages}, microbatches: {microbatches}, schedule: {schedule}}}"
    run = predict(small(EVEN, strategy, *ONLY_COMPUTE, f"batch={microbatches}"))
    theory = (stages - 1) / (microbatches + stages - 1)
    assert run.breakdown_s["bubble"] / run.step_time_s == pytest.approx(theory, rel=1e-6)


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_every_schedule_passes_each_microbatch_forward_then_backward(stages: int, extra: int, data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(["gpipe", "1f1b"]))
    microbatches, stage = stages + extra, data.draw(st.integers(0, stages - 1))
    ops = order(schedule, stage, stages, microbatches)
    assert len(ops) == len(set(ops)) == 2 * microbatches
    for m in range(microbatches):
        assert ops.index(Op(True, m)) < ops.index(Op(False, m))


def test_1f1b_holds_at_most_as_many_activations_as_stages() -> None:
    for stage in range(4):
        held = np.cumsum([1 if op.forward else -1 for op in order("1f1b", stage, 4, 32)])
        assert held.max() == 4 - stage
    assert np.cumsum([1 if op.forward else -1 for op in order("gpipe", 0, 4, 32)]).max() == 32


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_ring_moves_its_theory_through_every_rank(small: Make, workers: int) -> None:
    scenario = small(f"strategy.workers={workers}")
    program = scenario.strategy.compile(job(scenario))
    moved = program.amount[program.kind == Kind.COLLECTIVE].sum()
    size_bytes = 4 * scenario.model.parameters()
    assert moved == pytest.approx(2 * (workers - 1) / workers * size_bytes)


def test_without_overlap_a_ring_step_is_compute_plus_allreduce(small: Make) -> None:
    scenario = small(
        "strategy={kind: ring_allreduce, workers: 32, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}", "batch=64"
    )
    run = predict(scenario)
    size_bytes = 4 * scenario.model.parameters()
    allreduce_s = 62 * 20e-6 + 2 * 31 / 32 * size_bytes / 1.25e9
    assert run.breakdown_s["exposed_communication"] == pytest.approx(allreduce_s)
    assert run.step_time_s == pytest.approx(run.breakdown_s["compute"] + allreduce_s)


def test_overlap_never_hurts_and_never_beats_the_larger_of_the_two(small: Make) -> None:
    buckets_of = "strategy={{kind: ring_allreduce, workers: 32, bucket: 200 KiB, first_bucket: 50 KiB, overlap: {}}}"
    apart, together = (predict(small(buckets_of.format(flag), "batch=64")) for flag in ("false", "true"))
    communication_s = apart.breakdown_s["exposed_communication"]
    assert together.step_time_s < apart.step_time_s
    assert together.step_time_s >= max(communication_s, apart.breakdown_s["compute"])


def test_one_worker_needs_no_network(small: Make) -> None:
    run = predict(small("strategy.workers=1"))
    assert run.breakdown_s["compute"] == pytest.approx(run.step_time_s)
    assert run.efficiency == {"weak": 1.0, "strong": 1.0}


@pytest.mark.parametrize(("workers", "servers"), [(4, 1), (8, 2), (12, 4), (16, 2)])
def test_dedicated_servers_are_bound_by_the_busier_side(small: Make, workers: int, servers: int) -> None:
    """Per direction n·S/k bytes pass a server's card and S·(workers of a node) a node's; the slower decides."""
    scenario = small(
        f"strategy={{kind: parameter_server, workers: {workers}, servers: {servers}}}",
        "batch={per_worker: 1}",
        "cluster.network.latency=0",
        "cluster.node.memory_bandwidth=1 EB/s",
    )
    run = predict(scenario)
    size_bytes = 4 * scenario.model.parameters()
    per_direction_s = max(workers * size_bytes / servers, min(workers, 4) * size_bytes) / 1.25e9
    assert run.breakdown_s["exposed_communication"] == pytest.approx(2 * per_direction_s, rel=1e-6)


def test_colocated_servers_on_every_node_move_as_much_as_a_ring(small: Make) -> None:
    """With k = n, one worker to a node, (n − 1)·S/n bytes pass each card in each phase: the ring's bound."""
    common = (
        "cluster.node.devices=1",
        "cluster.network.latency=0",
        "batch={per_worker: 1}",
        "cluster.node.memory_bandwidth=1 EB/s",
    )
    servers = predict(small("strategy={kind: parameter_server, workers: 8, servers: 8, placement: colocated}", *common))
    ring = predict(small("strategy={kind: ring_allreduce, workers: 8, overlap: false}", *common))
    # a worker's own shard moves inside its node, faster, and at the same time
    assert servers.breakdown_s["exposed_communication"] == pytest.approx(ring.breakdown_s["exposed_communication"], rel=1e-6)


@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_folded_servers_equal_the_same_thing_unfolded(small: Make, placement: str) -> None:
    """Bytes through each resource equal those of every single message, counted one by one."""
    workers, servers = 10, 3
    scenario = small(
        f"strategy={{kind: parameter_server, workers: {workers}, servers: {servers}, placement: {placement}}}",
        "batch={per_worker: 1}",
    )
    program = scenario.strategy.compile(job(scenario))
    shard_bytes = 4 * scenario.model.parameters() / servers
    folded: dict[str, float] = {}
    for uses, amount, kind in zip(program.uses(), program.amount, program.kind, strict=True):
        for use in uses if kind == Kind.TRANSFER else []:
            name = program.resources.names[use.resource]
            folded[name] = folded.get(name, 0.0) + use.per_unit * amount
    node_of_worker = [w // 4 for w in range(workers)]
    node_of_server = [3 + s if placement == "dedicated" else s % 3 for s in range(servers)]
    cards: dict[str, float] = {}
    for a in node_of_worker:
        for b in node_of_server:
            for source, target in ((a, b), (b, a)):
                if source != target:
                    cards[f"node {source} network out"] = cards.get(f"node {source} network out", 0.0) + shard_bytes
                    cards[f"node {target} network in"] = cards.get(f"node {target} network in", 0.0) + shard_bytes
    modelled = {name: folded[name] for name in folded if "network" in name}
    assert modelled
    for name, size_bytes in modelled.items():
        assert size_bytes == pytest.approx(cards[name]), name


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_folded_pipelines_equal_all_of_them(small: Make, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.strategy.hybrid import Hybrid

    scenario = small(f"strategy={{kind: hybrid, workers: {workers}, stages: 2, microbatches: 4}}", "batch={per_worker: 4}")
    folded = predict(scenario)
    monkeypatch.setattr(Hybrid, "_modelled_workers", lambda self, job: self.workers)
    assert folded.step_time_s == pytest.approx(predict(scenario).step_time_s, rel=1e-9)


def test_hybrid_of_one_worker_is_a_pipeline(small: Make) -> None:
    numbers = "stages: 3, microbatches: 6, schedule: 1f1b"
    hybrid = predict(small(f"strategy={{kind: hybrid, workers: 1, {numbers}}}"))
    pipeline = predict(small(f"strategy={{kind: pipeline, {numbers}}}"))
    assert hybrid.step_time_s == pytest.approx(pipeline.step_time_s)


def test_a_faster_network_never_slows_a_step(small: Make) -> None:
    for strategy in (
        "{kind: ring_allreduce, workers: 8}",
        "{kind: parameter_server, workers: 8, servers: 2}",
        "{kind: pipeline, stages: 6, microbatches: 6}",
        "{kind: hybrid, workers: 4, stages: 3, microbatches: 6}",
    ):
        times = [
            predict(small(f"strategy={strategy}", f"cluster.network.bandwidth={gbit} Gbit/s", "batch=48")).step_time_s
            for gbit in (1, 10, 100)
        ]
        assert times == sorted(times, reverse=True)


def test_buckets_hold_all_gradients_in_reverse_order() -> None:
    layers = [Layer(str(i), str(i), 0.0, tensors, 1) for i, tensors in enumerate([(100, 10), (50,), (300, 30)])]
    assert buckets(layers, 4, first_bytes=100, bucket_bytes=1000) == [(2, 120.0), (2, 1200.0), (0, 640.0)]
    assert sum(size for _, size in buckets(layers, 4, 1, 1)) == 490 * 4
    assert buckets(layers, 4, 1e9, 1e9) == [(0, 1960.0)]


def test_breakdown_adds_up_for_every_family(small: Make) -> None:
    for strategy in (
        "{kind: ring_allreduce, workers: 12}",
        "{kind: parameter_server, workers: 12, servers: 3, placement: colocated}",
        "{kind: pipeline, stages: 5, microbatches: 12, schedule: gpipe}",
        "{kind: hybrid, workers: 2, stages: 3, microbatches: 4}",
    ):
        run = predict(small(f"strategy={strategy}"))
        assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
        assert run.breakdown_s["other"] == pytest.approx(0.0, abs=1e-9 * run.step_time_s)
        assert sum(run.phase_s.values()) == pytest.approx(run.step_time_s)
        assert run.efficiency is not None
        assert all(0 < e <= 1 + 1e-9 for e in run.efficiency.values())


def test_steps_after_the_first_are_alike(small: Make) -> None:
    for strategy in ("{kind: ring_allreduce, workers: 12}", "{kind: hybrid, workers: 4, stages: 3, microbatches: 3}"):
        scenario = small(f"strategy={strategy}")
        ends_s = simulate(scenario.strategy.compile(job(scenario)), 5).step_ends_s()
        assert np.diff(ends_s) == pytest.approx(np.diff(ends_s)[0])


def test_what_is_too_large_to_simulate_is_refused(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"strategy.microbatches: 600000 passes .* give at most 66666"):
        small("strategy={kind: pipeline, stages: 3, microbatches: 200000}", "batch=200000")
