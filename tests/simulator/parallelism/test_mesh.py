"""Placement of ranks: bytes per node equal the sum over its ranks, for any order of the axes."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.parallelism.mesh import ORDER, Axis, DeviceMesh
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import compiled, only_algorithms, rank_layers, sent_bytes

Make = Callable[..., Scenario]
EXPERTS = "experts: {count: 8, active: 2, feedforward: 64}"
DEVICES = 4
few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
two_to = st.sampled_from([1, 2, 4])
orders = st.permutations(ORDER).map(tuple)


def coordinates(grid: DeviceMesh, rank: int) -> dict[Axis, int]:
    sizes: dict[Axis, int] = {
        "tensor": grid.tensor, "context": grid.context, "workers": grid.workers, "stages": grid.stages,
    }  # fmt: skip
    result: dict[Axis, int] = {}
    for axis in grid.order:
        rank, result[axis] = divmod(rank, sizes[axis])
    return result


@given(two_to, st.integers(1, 5), st.integers(1, 3), two_to, orders)
def test_every_rank_has_one_place(workers: int, stages: int, tensor: int, context: int, order: tuple[Axis, ...]) -> None:
    grid = DeviceMesh(workers, stages, tensor, context, DEVICES, order)
    places = list(itertools.product(range(workers), range(stages)))
    assert sorted(rank for place in places for rank in grid.members(*place)) == list(range(workers * stages * tensor * context))
    for worker, stage in places:
        for rank in grid.members(worker, stage):
            at = coordinates(grid, rank)
            assert (at["workers"], at["stages"]) == (worker, stage)
    for stage in range(stages):
        replicas = [coordinates(grid, rank) for rank in grid.replicas_of(stage).ranks]
        assert all((one["stages"], one["tensor"]) == (stage, 0) for one in replicas)
        assert len(replicas) == workers * context


@given(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), orders)
def test_the_group_that_spans_the_most_nodes_represents_an_axis(
    workers: int, stages: int, tensor: int, context: int, order: tuple[Axis, ...]
) -> None:
    """All ranks proceed together, so the groups that span the most nodes determine the time."""
    grid = DeviceMesh(workers, stages, tensor, context, DEVICES, order)
    sizes: dict[Axis, int] = {"tensor": tensor, "context": context, "workers": workers}
    for axis, size in sizes.items():
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in range(workers * stages * tensor * context):
            others = tuple(item for item in coordinates(grid, rank).items() if item[0] != axis)
            groups.setdefault(others, []).append(rank)
        widest = max(len({rank // DEVICES for rank in ranks}) for ranks in groups.values())
        found = grid.along(axis, size)
        assert list(found.ranks) in groups.values()
        assert found.nodes == widest


def drawn(
    workers: int, stages: int, tensor: int, context: int, order: Sequence[Axis], zero: int, sharing: int, expert: int
) -> tuple[str, ...]:
    numbers = {
        "kind": "hybrid", "workers": workers, "stages": stages, "tensor": tensor, "context": context, "order": list(order),
        "microbatches": 2, "algorithm": "ring", "expert": min(expert, workers),
        "shard_over": min(sharing, workers) if zero else None,
    }  # fmt: skip
    return (
        f"model={{kind: llama, layers: 4, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, {EXPERTS}}}",
        f"strategy={json.dumps(numbers)}",
        f"training={{zero: {zero}}}",
        "batch={per_worker: 2}",
        "cluster.nodes=64",
        "framework=ideal",
    )


@few
@given(two_to, st.sampled_from([2, 4]), two_to, two_to, orders)
def test_boundary_messages_of_a_node_add_up_over_its_ranks(
    small: Make, workers: int, stages: int, tensor: int, context: int, order: tuple[Axis, ...]
) -> None:
    scenario = small(*drawn(workers, stages, tensor, context, order, 0, workers, 1))
    program, grid = compiled(scenario), scenario.strategy.plan.grid(DEVICES)
    counted: dict[int, float] = defaultdict(float)
    size_bytes = 4 * 64 * 32 / context
    for worker, stage in itertools.product(range(workers), range(stages - 1)):
        for one, next_one in zip(grid.members(worker, stage), grid.members(worker, stage + 1), strict=True):
            for source, target in ((one, next_one), (next_one, one)):
                counted[source // DEVICES] += 2 * size_bytes * (source // DEVICES != target // DEVICES)
    found = sent_bytes(program, Kind.TRANSFER)
    assert found == pytest.approx({node: counted[node] for node in found})
    assert bool(found) == any(counted.values())


@few
@given(two_to, st.sampled_from([1, 2]), two_to, two_to, orders, st.integers(0, 3), two_to, two_to)
def test_collective_messages_of_a_node_add_up_over_its_groups(
    small: Make,
    workers: int,
    stages: int,
    tensor: int,
    context: int,
    order: tuple[Axis, ...],
    zero: int,
    sharing: int,
    expert: int,
) -> None:
    """Each group runs a ring over its ranks in order; groups of one kind run concurrently."""
    scenario = small(*drawn(workers, stages, tensor, context, order, zero, sharing, expert))
    with only_algorithms("ring", "pairwise"):
        program = compiled(scenario)
    counted: dict[int, float] = defaultdict(float)
    for ranks, moved_bytes in rings(scenario):
        for source, target in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            counted[source // DEVICES] += moved_bytes * (source // DEVICES != target // DEVICES)
    found = sent_bytes(program, Kind.COLLECTIVE)
    assert found == pytest.approx({node: counted[node] for node in found})
    assert bool(found) == any(counted.values())


def rings(scenario: Scenario) -> Iterator[tuple[list[int], float]]:
    """Ranks of every group that synchronises parameters, and the bytes that each sends per step."""
    plan, job = scenario.strategy.plan, job_of(scenario)
    grid = plan.grid(DEVICES)
    ranks = [(rank, coordinates(grid, rank)) for rank in range(plan.ranks)]
    parts = rank_layers(scenario.strategy, job)
    microbatches = {0: 0, 1: 0, 2: 1, 3: 3}[job.zero] * plan.microbatches
    ways = microbatches + {0: 2, 1: 2, 2: 1, 3: 0}[job.zero]
    sharing = plan.sharing if job.zero else plan.workers
    sums = plan.microbatches if job.zero >= 2 else 1
    for stage, tensor in itertools.product(range(plan.stages), range(plan.tensor)):
        own = [(rank, at) for rank, at in ranks if (at["stages"], at["tensor"]) == (stage, tensor)]
        experts_bytes = 4 * sum(layer.expert_parameters for layer in parts[stage]) if plan.expert > 1 else 0
        dense_bytes = 4 * sum(layer.parameters for layer in parts[stage]) - experts_bytes
        inside = sharing * plan.context
        for number in range(plan.workers // sharing):
            group = [rank for rank, at in own if at["workers"] // sharing == number]
            yield group, ways * (inside - 1) / inside * dense_bytes
        for number, context in itertools.product(range(sharing), range(plan.context)) if job.zero else ():
            group = [rank for rank, at in own if (at["workers"] % sharing, at["context"]) == (number, context)]
            yield group, sums * 2 * (len(group) - 1) / len(group) * dense_bytes / inside
        for number in range(plan.expert) if plan.expert > 1 else ():
            group = [rank for rank, at in own if at["workers"] % plan.expert == number]
            yield group, ways * (len(group) - 1) / len(group) * experts_bytes
