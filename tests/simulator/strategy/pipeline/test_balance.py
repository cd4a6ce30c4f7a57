"""Partition into stages: no other partition has a smaller maximum weight."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.layers import Layer, block_range
from scaleproof.simulator.model.operators import Matmul, SavedActivation
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.schedules import peak_activations
from scaleproof.simulator.strategy.plan_costs import cut
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.clusters import plain
from tests.simulator.programs import compiled, exchange_s, rank_layers, work_s

Make = Callable[..., Scenario]
ONE_CHUNK: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
weights = st.integers(0, 30)


def model(sizes: Sequence[int], lead: int, trail: int, kept: Sequence[int] = ()) -> list[Layer]:
    """Layers with the given FLOPs; the first and the last few are pinned to the ends."""
    last = len(sizes) - trail
    kept = kept or [0] * len(sizes)
    return [
        Layer(
            f"layer{i}", f"layer{i}", (Matmul("product", 1, size, 10),), (), 1,
            pinned_to_end=not lead <= i < last, kept=(SavedActivation("input", kept[i]),),
        )
        for i, size in enumerate(sizes)
    ]  # fmt: skip


def job(layers: Sequence[Layer]) -> Job:
    return Job(layers, plain(devices=8), 12, "fp32", "sgd")


def cuts(layers: Sequence[Layer], stages: int) -> Iterator[list[range]]:
    """All partitions with a block in every stage, and pinned layers in the first and the last."""
    first, last = block_range(layers)
    for inner in itertools.combinations(range(first + 1, last), stages - 1):
        yield [range(a, b) for a, b in itertools.pairwise([0, *inner, len(layers)])]


@given(
    st.lists(weights, min_size=4, max_size=9), st.integers(0, 1), st.integers(0, 1), st.integers(1, 4), st.sampled_from([1, 2])
)
def test_no_other_partition_has_a_faster_slowest_stage(
    sizes: list[int], lead: int, trail: int, stages: int, chunks: int
) -> None:
    layers = model(sizes, lead, trail)
    total = stages * chunks
    if total > len(sizes) - lead - trail:
        return
    schedule: ScheduleName = "1f1b" if chunks == 1 else "looped_bfs"
    found = cut(job(layers), Plan(stages=stages, chunks=chunks, schedule=schedule, balance="time"))

    def slowest(ranges: Sequence[range]) -> int:
        return max(sum(sizes[i] for i in part) for part in ranges)

    assert found in list(cuts(layers, total))
    assert slowest(found) == min(map(slowest, cuts(layers, total)))


@given(st.lists(weights, min_size=4, max_size=9), st.integers(2, 4), st.sampled_from(ONE_CHUNK))
def test_no_other_partition_has_less_peak_memory(kept: list[int], stages: int, schedule: ScheduleName) -> None:
    """A stage of 1F1B keeps activations of one microbatch for itself and for each later stage."""
    layers = model([1] * len(kept), 0, 0, kept)
    plan = Plan(stages=stages, microbatches=12, schedule=schedule, balance="memory")
    found = cut(job(layers), plan)
    peaks = peak_activations(plan.schedule, stages, 12)

    def heaviest(ranges: Sequence[range]) -> float:
        return max(float(peaks[stage]) * sum(kept[i] for i in part) for stage, part in enumerate(ranges))

    assert found in list(cuts(layers, stages))
    assert heaviest(found) == pytest.approx(min(map(heaviest, cuts(layers, stages))))


@pytest.mark.parametrize("blocks", [[4, 1, 1], [1, 1, 4], [2, 2, 2], [1, 4, 1]])
def test_stages_have_the_given_number_of_blocks(small: Make, blocks: list[int]) -> None:
    scenario = small(f"strategy={{kind: pipeline, stages: 3, microbatches: 6, balance: {blocks}}}")
    parts = rank_layers(scenario.strategy, job_of(scenario))
    assert [sum(not layer.pinned_to_end for layer in part) for part in parts] == blocks
    assert parts[0][0].pinned_to_end
    assert parts[-1][-1].pinned_to_end


def test_message_size_is_the_output_of_the_layer_before_the_cut(small: Make) -> None:
    model = "model={kind: mlp, layers: 4, inputs: 8, hidden: 100, outputs: 5}"
    for blocks in ([1, 3], [2, 2], [3, 1]):
        scenario = small(model, f"strategy={{kind: pipeline, stages: 2, microbatches: 2, balance: {blocks}}}", "batch=6")
        program = compiled(scenario)
        sent = program.amount[program.kind == Kind.TRANSFER]
        assert sent.tolist() == [3 * 100 * 4] * 4
        assert (program.phase[program.kind == Kind.TRANSFER] == Phase.SEND).all()


def test_balance_includes_collectives_within_passes(small: Make) -> None:
    """Of layers with equal compute, those that send tokens to experts take longer, and other cuts are no faster."""
    model = (
        "model={kind: llama, layers: 8, hidden: 64, heads: 4, vocabulary: 8, sequence: 32, feedforward: 64, "
        "experts: {count: 8, active: 1, feedforward: 64, dense_layers: 4}}"
    )

    def slowest_s(balance: str) -> float:
        numbers = f"workers: 4, expert: 4, stages: 2, balance: {balance}"
        program = compiled(
            small(model, f"strategy={{kind: hybrid, {numbers}}}", "cluster.node.link.bandwidth=100 MB/s", "batch=8")
        )
        forward_s, backward_s = (
            work_s(program, phase) + exchange_s(program, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)
        )
        return float((forward_s + backward_s).max())

    assert slowest_s("time") == pytest.approx(min(slowest_s(f"[{first}, {8 - first}]") for first in range(1, 8)))
    assert slowest_s("time") < 0.9 * slowest_s("layers")


@pytest.mark.parametrize(("stages", "blocks"), [(2, [10, 6]), (4, [5, 5, 5, 1]), (5, [4, 4, 4, 3, 1])])
def test_stages_filled_in_order_stop_at_their_share_of_weights(stages: int, blocks: list[int]) -> None:
    # an output head as heavy as four of the sixteen blocks
    layers = model([1] * 16 + [4], 0, 1)
    parts = cut(job(layers), Plan(stages=stages, balance="products"))
    assert [sum(not layers[i].pinned_to_end for i in part) for part in parts] == blocks
