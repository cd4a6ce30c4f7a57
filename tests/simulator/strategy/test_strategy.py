"""Theoretical results for each strategy, on clusters for which they are simple."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine.events import simulate
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.data_parallel.buckets import Gradients
from scaleproof.simulator.strategy.job import Job
from tests.simulator.programs import compiled, separate_workers, step_s

# a network and devices on which nothing but bytes takes time, and one on which nothing but compute does
ONLY_COMPUTE = (
    "cluster.network={bandwidth: 1 EB/s, latency: 0}",
    "cluster.node.link={bandwidth: 1 EB/s, latency: 0}",
    "cluster.device.memory_bandwidth=1 EB/s",
)
# of 24 equal blocks; the head is a hundred-thousandth of one
EVEN = "model={kind: gpt, layers: 24, hidden: 8192, heads: 4, vocabulary: 1, sequence: 8}"
Make = Callable[..., Scenario]


def job(scenario: Scenario) -> Job:
    return Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 4), (4, 12), (6, 24)])
def test_bubble_of_gpipe_and_1f1b_equals_the_formula(small: Make, schedule: str, stages: int, microbatches: int) -> None:
    """(p − 1) / (m + p − 1) of the step is idle: arXiv 1811.06965, 2104.04473."""
    strategy = f"strategy={{kind: pipeline, stages: {stages}, microbatches: {microbatches}, schedule: {schedule}}}"
    run = predict(small(EVEN, strategy, *ONLY_COMPUTE, f"batch={microbatches}"))
    theory = (stages - 1) / (microbatches + stages - 1)
    assert run.breakdown_s["bubble"] / run.step_time_s == pytest.approx(theory, rel=1e-4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 5), (5, 12)])
def test_order_hints_of_pipelines_exceed_those_of_predecessors(
    small: Make, schedule: str, stages: int, microbatches: int
) -> None:
    scenario = small(
        f"strategy={{kind: pipeline, stages: {stages}, microbatches: {microbatches}, schedule: {schedule}}}",
        f"batch={microbatches}",
    )
    program = compile_step(scenario.strategy, job(scenario))
    before = program.predecessors()
    task, previous = before.keys(), before.values
    hinted = program.slot[task] >= 0
    assert (program.slot[previous[hinted]] >= 0).all()
    assert (program.slot[previous] < program.slot[task])[hinted].all()
    # only the last tasks of a step have none
    assert set(program.phase[program.slot < 0]) == {Phase.SEND, Phase.OPTIMIZER}
    assert (program.slot < 0).sum() == 2 * stages


@pytest.mark.parametrize(("schedule", "turns"), [("gpipe", 1), ("1f1b", 0)])
def test_messages_wait_for_both_sides_and_both_wait_for_them(small: Make, schedule: str, turns: int) -> None:
    stages, microbatches = 3, 5
    scenario = small(
        f"strategy={{kind: pipeline, stages: {stages}, microbatches: {microbatches}, schedule: {schedule}}}", "batch=5",
        "framework=ideal",
    )  # fmt: skip
    program = compile_step(scenario.strategy, job(scenario))
    before = program.dependencies.lists()
    transfers = np.flatnonzero(program.kind == Kind.TRANSFER)
    assert len(transfers) == 2 * (stages - 1) * microbatches
    for row in transfers:
        made, awaited = before[row]
        sent = (program.rank[made], program.microbatch[made])
        assert sent == (program.rank[row], program.microbatch[row])
        assert program.rank[awaited] == program.peer[row]
        # the pass that uses it comes next on its stream
        used = awaited + 1
        assert row in before[used]
        assert (program.phase[used], program.microbatch[used]) == (program.phase[made], program.microbatch[made])
    for stage in range(stages):
        sent = transfers[program.rank[transfers] == stage]
        waits = np.flatnonzero((program.rank == stage) & (program.phase == Phase.SEND) & (program.kind == Kind.COMPUTE))
        assert len(waits) == 1 + turns
        assert sorted(before[waits[-1]]) == sent.tolist()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_ring_moves_the_theoretical_bytes_through_every_rank(small: Make, workers: int) -> None:
    scenario = small(f"strategy.workers={workers}")
    program = compile_step(scenario.strategy, job(scenario))
    moved = program.amount[program.kind == Kind.COLLECTIVE].sum()
    size_bytes = 4 * scenario.model.parameters()
    assert moved == pytest.approx(2 * (workers - 1) / workers * size_bytes)


def test_without_overlap_a_ring_step_is_compute_plus_allreduce(small: Make) -> None:
    scenario = small(
        "strategy={kind: data_parallel, workers: 32, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}", "batch=64"
    )
    run = predict(scenario)
    size_bytes = 4 * scenario.model.parameters()
    allreduce_s = collective_time("all_reduce", size_bytes, 32, scenario.cluster)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(allreduce_s)
    assert run.step_time_s == pytest.approx(run.breakdown_s["compute"] + allreduce_s)


def test_overlapped_step_time_is_between_the_maximum_and_the_sum(small: Make) -> None:
    buckets_of = "strategy={{kind: data_parallel, workers: 32, bucket: 200 KiB, first_bucket: 50 KiB, overlap: {}}}"
    separate, overlapped = (predict(small(buckets_of.format(flag), "batch=64")) for flag in ("false", "true"))
    communication_s = separate.breakdown_s["exposed_communication"]
    assert overlapped.step_time_s < separate.step_time_s
    assert overlapped.step_time_s >= max(communication_s, separate.breakdown_s["compute"])


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


def test_colocated_servers_on_every_node_move_the_bytes_of_a_ring(small: Make) -> None:
    """With k = n, one worker to a node, (n − 1)·S/n bytes pass each card in each phase: the ring's bound."""
    common = (
        "cluster.node.devices=1",
        "cluster.network.latency=0",
        "batch={per_worker: 1}",
        "cluster.node.memory_bandwidth=1 EB/s",
    )
    servers = predict(small("strategy={kind: parameter_server, workers: 8, servers: 8, placement: colocated}", *common))
    ring = predict(small("strategy={kind: data_parallel, workers: 8, overlap: false}", *common))
    # a worker's own shard moves inside its node, faster, and at the same time
    assert servers.breakdown_s["exposed_communication"] == pytest.approx(ring.breakdown_s["exposed_communication"], rel=1e-6)


@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_folded_servers_equal_unfolded_ones(small: Make, placement: str) -> None:
    """Bytes through each resource equal those of every single message, counted one by one."""
    workers, servers = 10, 3
    scenario = small(
        f"strategy={{kind: parameter_server, workers: {workers}, servers: {servers}, placement: {placement}}}",
        "batch={per_worker: 1}",
    )
    program = compile_step(scenario.strategy, job(scenario))
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
                    cards[f"network {source} out"] = cards.get(f"network {source} out", 0.0) + shard_bytes
                    cards[f"network {target} in"] = cards.get(f"network {target} in", 0.0) + shard_bytes
    modelled = {name: folded[name] for name in folded if "network" in name}
    assert modelled
    for name, size_bytes in modelled.items():
        assert size_bytes == pytest.approx(cards[name]), name


FOLDED = (
    "workers: 2, stages: 2, microbatches: 4",
    "workers: 8, stages: 2, microbatches: 4",
    "workers: 8, stages: 4, microbatches: 4, order: [stages, tensor, context, workers]",
    "workers: 16, stages: 2, microbatches: 2, overlap: false",
    "workers: 8, stages: 2, tensor: 2, microbatches: 4",
    "workers: 4, stages: 2, tensor: 4, microbatches: 2",
    "workers: 2, stages: 2, tensor: 2, context: 2, microbatches: 2, order: [tensor, workers, context, stages]",
    "workers: 12, stages: 2, microbatches: 2",
    "workers: 32, stages: 1",
)


@pytest.mark.parametrize("numbers", FOLDED)
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_folded_replicas_equal_separate_ones(small: Make, numbers: str, zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equivalent workers are modelled once; modelled individually they take as long."""
    scenario = small(
        f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 4}", f"training={{zero: {zero}}}", "cluster.nodes=16"
    )
    folded = compiled(scenario)
    separate_workers(monkeypatch)
    alone = compiled(scenario)
    assert step_s(folded) == pytest.approx(step_s(alone), rel=1e-9)
    assert folded.ranks.multiplicity.sum() == alone.ranks.multiplicity.sum() == scenario.strategy.ranks


def test_hybrid_of_one_worker_is_a_pipeline(small: Make) -> None:
    numbers = "stages: 3, microbatches: 6, schedule: 1f1b"
    hybrid = predict(small(f"strategy={{kind: hybrid, workers: 1, {numbers}}}"))
    pipeline = predict(small(f"strategy={{kind: pipeline, {numbers}}}"))
    assert hybrid.step_time_s == pytest.approx(pipeline.step_time_s)


def test_a_faster_network_never_slows_a_step(small: Make) -> None:
    for strategy in (
        "{kind: data_parallel, workers: 8}",
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
    gradients = Gradients(layers)
    assert gradients.tensors == (30, 300, 50, 10, 100)
    assert gradients.buckets(range(3), 4, first_bytes=100, bucket_bytes=1000) == ([0, 1, 2, 5], [2, 2, 0])
    assert gradients.buckets(range(3), 4, 1, 1) == ([0, 1, 2, 3, 4, 5], [2, 2, 1, 0, 0])
    assert gradients.buckets(range(3), 4, 1e9, math.inf) == ([0, 5], [0])


def test_buckets_contain_gradients_of_the_given_layers_only() -> None:
    layers = [Layer(str(i), str(i), 0.0, tensors, 1) for i, tensors in enumerate([(100,), (), (10,), (20, 30)])]
    gradients = Gradients(layers)
    assert gradients.buckets(range(1, 4), 4, 1000, 1000) == ([0, 3], [1])
    assert gradients.buckets(range(1, 4), 4, 120, 40) == ([0, 1, 2, 3], [3, 3, 2])
    assert gradients.buckets(range(1, 2), 4, 120, 40) == ([3], [])


def test_breakdown_adds_up_for_every_family(small: Make) -> None:
    for strategy in (
        "{kind: data_parallel, workers: 12}",
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


def test_steps_after_the_first_are_equal(small: Make) -> None:
    for strategy in ("{kind: data_parallel, workers: 12}", "{kind: hybrid, workers: 4, stages: 3, microbatches: 3}"):
        scenario = small(f"strategy={strategy}")
        ends_s = simulate(compile_step(scenario.strategy, job(scenario)), 5).step_ends_s()
        assert np.diff(ends_s) == pytest.approx(np.diff(ends_s)[0])


def test_programs_too_large_to_simulate_are_rejected(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"strategy.microbatches: 600000 passes .* give at most 66666"):
        small("strategy={kind: pipeline, stages: 3, microbatches: 200000}", "batch=200000")
