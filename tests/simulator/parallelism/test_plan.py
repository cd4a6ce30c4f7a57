"""Compatible degrees of parallelism, and error messages for others."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
MIXTURE = (
    "model={kind: llama, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, "
    "experts: {count: 8, active: 2, feedforward: 64}}"
)

REFUSED: dict[str, tuple[str, str]] = {
    "{kind: hybrid, workers: 4, shard_over: 3}": ("shard_over", "3 does not divide 4 workers; give 2 or 4"),
    "{kind: hybrid, workers: 4, shard_over: 16}": ("shard_over", "16 does not divide 4 workers; give 4"),
    "{kind: data_parallel, workers: 6, shard_over: 4}": ("shard_over", "4 does not divide 6 workers; give 3 or 6"),
    "{kind: hybrid, workers: 4, expert: 2}": ("expert", "there are no experts to divide; leave expert parallelism out"),
    "{kind: hybrid, workers: 2, order: [tensor, tensor, workers, stages]}": (
        "order",
        "must list each of tensor, context, workers, stages once, innermost first",
    ),
    "{kind: hybrid, workers: 2, order: [tensor, workers]}": (
        "order",
        "must list each of tensor, context, workers, stages once, innermost first",
    ),
    "{kind: hybrid, stages: 3, tensor: 2, order: [context, context, context]}": (
        "order",
        "must list each of tensor, context, workers, stages once, innermost first",
    ),
    "{kind: hybrid, sequence_parallel: true}": (
        "sequence_parallel",
        "has no effect without tensor parallelism; set strategy.tensor, or leave it out",
    ),
    "{kind: hybrid, tensor: 3}": ("tensor", "3 ranks do not divide heads 4; give a divisor of it, such as 2"),
    "{kind: hybrid, context: 5}": ("context", "5 ranks do not divide sequence 32; give a divisor of it, such as 4"),
    "{kind: pipeline, stages: 2, chunks: 2, microbatches: 2, schedule: gpipe}": (
        "chunks",
        "gpipe needs one chunk per rank, got 2; give 1",
    ),
    "{kind: pipeline, stages: 2, microbatches: 2, schedule: interleaved_1f1b}": (
        "chunks",
        "interleaved_1f1b needs several chunks per rank, got 1; give 2",
    ),
    "{kind: pipeline, schedule: interleaved_1f1b}": (
        "chunks",
        "interleaved_1f1b needs several chunks per rank, got 1; give 2",
    ),
    "{kind: pipeline, stages: 1, chunks: 2, schedule: interleaved_1f1b}": (
        "chunks",
        "2 chunks need several pipeline stages; set strategy.stages, or set chunks: 1 and schedule: 1f1b",
    ),
    "{kind: pipeline, stages: 3, chunks: 2, microbatches: 16, schedule: interleaved_1f1b}": (
        "microbatches",
        "interleaved_1f1b runs its microbatches in 5 equal rounds, got 16; give 15 or 18",
    ),
    "{kind: pipeline, stages: 4, microbatches: 6, chunks: 2, schedule: dualpipe_v}": (
        "stages",
        "8 stages for 6 layers; give at most 6",
    ),
    "{kind: pipeline, stages: 3, microbatches: 4, chunks: 2, schedule: dualpipe_v}": (
        "microbatches",
        "dualpipe_v needs at least two microbatches for each rank, got 4 for 3; give 6",
    ),
    "{kind: pipeline, stages: 7, microbatches: 8}": ("stages", "7 stages for 6 layers; give at most 6"),
    "{kind: pipeline, stages: 2, balance: [3, 2, 1]}": ("balance", "3 numbers for 2 stages of the model; give one per stage"),
    "{kind: pipeline, stages: 2, balance: [3, 4]}": (
        "balance",
        "they add up to 7 blocks, but the model has 6; change the numbers",
    ),
    "{kind: pipeline, stages: 2, microbatches: 5}": ("microbatches", "5 microbatches do not divide 48 samples; give 4"),
    "{kind: data_parallel, workers: 4, microbatches: 7}": ("microbatches", "7 microbatches do not divide 12 samples; give 6"),
    "{kind: data_parallel, workers: 4, algorithm: rings}": (
        "algorithm",
        "unknown all-reduce algorithm 'rings'; give one of all_pairs, binary_tree, ",
    ),
    "{kind: data_parallel, workers: 4, algorithm: pairwise}": (
        "algorithm",
        "unknown all-reduce algorithm 'pairwise'; give one of all_pairs, binary_tree, ",
    ),
    "{kind: data_parallel, workers: 4, prefetch: -1}": ("prefetch", "must be at least 0, got -1"),
    "{kind: data_parallel, workers: 33}": (
        "",
        "33 ranks for 32 devices (8 nodes × 4); give at most 32, or set cluster.nodes=9",
    ),
}


@pytest.mark.parametrize("strategy", REFUSED)
def test_incompatible_fields_are_rejected_with_a_remedy(small: Make, strategy: str) -> None:
    field, message = REFUSED[strategy]
    where = ".".join(filter(None, ("strategy", field)))
    batch = "batch={per_worker: 12}" if "workers" in strategy else "batch=48"
    with pytest.raises(ScenarioError, match=re.escape(f"{where}: {message}")):
        small(f"strategy={strategy}", batch, f"training.zero={int('shard_over' in strategy)}")


def test_experts_that_do_not_divide_are_refused(small: Make) -> None:
    for numbers, message in (
        ("workers: 6, expert: 4", "4 does not divide 6 workers; give 3 or 6"),
        ("workers: 3, expert: 3", "3 ranks do not divide experts.count 8; give a divisor of it, such as 2"),
    ):
        with pytest.raises(ScenarioError, match=re.escape(f"strategy.expert: {message}")):
            small(MIXTURE, f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 12}")
